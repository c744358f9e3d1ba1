"""The extension points, in the order in which a pod meets them. A plugin is a class that inherits `Plugin` and the interfaces of the points
it wants.

    waiting     PodObserver -> PreEnqueue -> QueueSort, or NextPod
    deciding    Transformer.before_pre_filter -> Restorer.restored_rows -> PreFilter -> Transformer.after_pre_filter -> FindOneNode
                -> Filter, ReservationFilter -> PreferNodes, or PreScore -> Score
                no node:  PostFilter -> after_post_filter of all -> ReserveFailure for Reservations
    placing     Restorer.nominate -> ResizePod -> Reserve -> Permit -> PreBind.waits
    binding     PreBind -> PreBindPatch -> Bind -> PostBind
    giving up   Reserve.unreserve, in reverse order -> Forget
    beside      Controllers, feeds, endpoints

Deciding asks once for what pods of a shape share, and then about rows that changed: count on no moment in which a point is asked. Placing
and binding ask every plugin for each pod.

Filters and scores look at many nodes at once: they get `rows` (a slice for all of them, or an array of slots: those that changed, or the
one that somebody asks about) and return an array of that length; with `takes_slot` also one slot, for which they return a number. Dead rows
may hold anything; the engine masks them out. Whoever wants no vectors writes `filter_row` or `score_row` instead, for one node. See
docs/scheduler.md for worked examples.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from koord.api.kinds import Kind
from koord.api.objects import convert
from koord.decisions.record import Term
from roles.scheduler.cluster.changes import NODE, PODS
from roles.scheduler.cluster.columns import Vector
from roles.scheduler.cluster.podinfo import PodInfo, PodShape
from roles.scheduler.framework.context import BindDraft, CycleContext, Rows
from roles.scheduler.framework.events import Subscription
from roles.scheduler.framework.normalize import Normalizer
from roles.scheduler.framework.restoring import RestoredReservation
from roles.scheduler.framework.status import SUCCESS, PostFilterResult, Status
from roles.scheduler.framework.steps import Steps
from roles.scheduler.framework.tally import Tally

if TYPE_CHECKING:
    from roles.scheduler.framework.handle import Handle


# ---------------------------------------------------------------- every plugin


Codes = NDArray[Any]
"""Per row: 0 (or False) passes, anything else rejects, with a meaning that the plugin's `rejection` knows. A boolean array
rejects with code 1. The engine writes into it: never hand out a column itself."""


class _Rejection(NamedTuple):
    reasons: tuple[str, ...]
    resolvable: bool = True


class Rejection(_Rejection):
    """Why a node is refused: reasons, or the only one as a text. `resolvable` False is UnschedulableAndUnresolvable: removing pods cannot
    help."""

    __slots__ = ()

    def __new__(cls, reasons: tuple[str, ...] | str, resolvable: bool = True) -> Self:
        # a text is easily meant as a tuple of one (its comma forgotten); as it is, its letters would be the reasons
        return super().__new__(cls, (reasons,) if isinstance(reasons, str) else reasons, resolvable)


class Plugin:
    """Base of every plugin. `args` is an instance of `Args` (a pydantic model), or None where the plugin has none."""

    name: ClassVar[str]
    Args: ClassVar[type[Any] | None] = None

    def __init__(self, args: Any, handle: Handle) -> None:
        self.args = args
        self.handle = handle

    def subscriptions(self) -> Sequence[Subscription]:
        """Events on which pods that this plugin rejected are worth another try."""
        return ()

    def shape_key(self, pod: PodInfo) -> Hashable:
        """What the plugin looks at in a pod beyond its shape; pods with equal shapes and keys share vectors."""
        return None

    def endpoints(self) -> Sequence[Endpoint]:
        """Pages that show what the plugin knows (GET, leader only)."""
        return ()

    def feeds(self) -> Sequence[Feed]:
        """API objects beside pods and nodes that the plugin wants to be told of."""
        return ()

    def explain(self, ctx: CycleContext) -> Sequence[Term]:
        """Numbers behind the plugin's refusal of the pod in this cycle, for the decision record."""
        return ()

    def placed(self, ctx: CycleContext, slot: int) -> Sequence[Term]:
        """What the plugin gave the pod on the node that was chosen, for the decision record; asked after Reserve."""
        return ()


class Endpoint(NamedTuple):
    """A page of the services API below `/apis/v1/plugins/<plugin>/`. `path` may hold `{name}` parts, which `answer` gets as
    a dict together with the query; it returns what is sent as JSON, or None for 404."""

    path: str
    answer: Callable[[dict[str, str]], Any]


class PageError(Exception):
    """A page that cannot be made now; answered with status 500 and the text."""


class Feed(NamedTuple):
    """A kind a plugin observes. `observe(old, new)` gets decoded objects (`projection`, a msgspec Struct type or dict), or what
    `transform` makes of them (None leaves one out); None = absent. Where it answers False, nothing changed that the plugin looks at, and
    no pod is tried again for it. `field_selector` and `namespace` narrow what is watched; a what-if tells of all objects of the kind."""

    kind: Kind
    projection: type[Any]
    observe: Callable[[Any, Any], object]
    field_selector: str = ""
    transform: Callable[[Any], Any] | None = None
    namespace: str | None = None

    def read(self, objects: Iterable[dict[str, Any]]) -> list[Any]:
        """Objects as they are observed, from decoded JSON. Raises msgspec.ValidationError."""
        found = (item if self.projection is dict else convert(item, self.projection) for item in objects)
        return [one for one in (map(self.transform, found) if self.transform is not None else found) if one is not None]


class Controllers(Plugin):
    """Runs background work on the leader."""

    of_binding: ClassVar[frozenset[str]] = frozenset()
    """Names of work without which binding is not whole: --controller-plugins does not stop it."""

    def controllers(self) -> Iterable[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        """Named coroutine functions, each run until the process stops."""
        raise NotImplementedError


# ---------------------------------------------------------------- waiting


class PodObserver(Plugin):
    """Told of every running pod, of whatever scheduler, with a node or without, before caches and queue are."""

    def pod_seen(self, pod: PodInfo) -> None:
        """The pod appeared or changed."""
        raise NotImplementedError

    def pod_gone(self, uid: str) -> None:
        """The pod was deleted or has ended."""
        raise NotImplementedError


class PreEnqueue(Plugin):
    """Decides whether a pod may enter the active queue at all."""

    def pre_enqueue(self, pod: PodInfo) -> Status:
        raise NotImplementedError


class QueueSort(Plugin):
    """Orders the active queue."""

    def sort_key(self, pod: PodInfo, entered: float) -> tuple[Any, ...]:
        """Smaller comes first. `entered` is when the pod entered the queue, in seconds."""
        raise NotImplementedError


class NextPod(Plugin):
    """Asked before the queue is popped; may name the pod that is scheduled next, wherever it waits (one plugin across profiles)."""

    def next_pod(self) -> PodInfo | Steps[None] | None:
        """The pod; None when the queue decides. Steps are long work that comes first: then the plugin is asked again."""
        raise NotImplementedError

    def diagnose(self, pod: PodInfo) -> dict[str, Any]:
        """What the diagnosis of a failed cycle tells of the pod's job, by the names that it has there."""
        return {}

    def job_of(self, pod: PodInfo) -> Hashable:
        """Pods of one job (not None) are placed together: nominations of some do not stand in the way of the others, and
        what one gives back is of no use to the others by itself. It must follow from the pod's shape and gang."""
        return None

    def wording(self, pod: PodInfo, message: str) -> str:
        """What a pod of a job that was refused shows: the message, or what it shows already where that says the same of the job."""
        return message


# ---------------------------------------------------------------- deciding


class Transformer(Plugin):
    """A before or after step around preFilter; `before_pre_filter` may replace the pod for the rest of the cycle."""

    def before_pre_filter(self, ctx: CycleContext) -> tuple[Status, PodInfo | None]:
        return SUCCESS, None

    def after_pre_filter(self, ctx: CycleContext) -> Status:
        return SUCCESS


class NodeSet(NamedTuple):
    """A preFilter's restriction to named nodes."""

    names: frozenset[str]


class NodeMask(NamedTuple):
    """A preFilter's restriction to the slots that are true."""

    mask: NDArray[np.bool_]


class PreFilter(Plugin):
    """Looks at the pod once per cycle. SKIP also switches the plugin's filter off for this cycle.

    `per_pod` False: the answer depends on the pod's shape and on columns in `reads` only, so it is kept with the shape's vectors. True:
    it is asked in every cycle. If the plugin filters or scores as well, that comes first, and it is asked about all nodes for each pod:
    what it has left in `ctx.data` is this pod's own.
    """

    per_pod: ClassVar[bool] = False

    def pre_filter(self, ctx: CycleContext) -> Status | NodeSet | NodeMask:
        raise NotImplementedError


class FindOneNode(Plugin):
    """Plans the node of a pod after preFilter; SUCCESS with a node makes it the only candidate, SKIP goes on as usual. A plan that takes
    long is handed back as steps."""

    def find_one_node(self, ctx: CycleContext, candidates: NDArray[np.bool_]) -> tuple[Status, str] | Steps[tuple[Status, str]]:
        raise NotImplementedError


ASK = -1
"""For filters that work in steps: stands for rows that columns do not decide, until they are asked about one by one."""


class Filter(Plugin):
    """Refuses nodes. `reads` says what changes of a row can change its answer for that row (bits of the change log).

    Write `filter`, or `filter_row` if one node at a time is all you want; an answer for a row must not depend on which other rows are
    asked about. Rows in `ctx.restored` come one by one, inside `ctx.restoring(slot)`.
    """

    reads: int = NODE | PODS
    row_wise: ClassVar[bool] = False  # True: dear; asked last, about rows that passed everything else
    takes_slot: ClassVar[bool] = False  # True: `rows` may be the slot of one row, and the answer its code (cluster/arithmetic.py)

    def filter(self, ctx: CycleContext, rows: Rows) -> Codes | None:
        """Codes of the rows; None when all of them pass."""
        slots = ctx.cluster.slots[rows]
        codes = np.zeros(len(slots), dtype=np.int32)
        for index in np.flatnonzero(ctx.cluster.alive[slots]).tolist():
            codes[index] = self.filter_row(ctx, slots.item(index))
        return codes

    def filter_row(self, ctx: CycleContext, slot: int) -> int:
        """Code of one node. Asked only where `filter` is not written."""
        raise NotImplementedError("write filter or filter_row")

    def refine(self, ctx: CycleContext, slots: NDArray[np.intp], codes: Codes) -> Codes:
        """Codes with more detail for rows that `filter` refused. Asked only when a failure is explained, so `filter` can stay lean."""
        return codes

    def must_fit(self, pod: PodInfo) -> Iterable[int]:
        """Resources (by id) of which the filter refuses every node that has less free than the pod requests. Spares what-ifs."""
        return ()

    def tally(self, ctx: CycleContext) -> Tally | None:
        """How the filter adds up for the pod, so that preemption works out in sums who has to go; `FIXED` where it says the same of a node
        whoever leaves it; None where only trying tells. Not asked for one that `reads` nothing but NODE."""
        return None

    def affected_by(self, ctx: CycleContext, other: PodShape) -> bool:
        """Whether one more pod of that shape on a node can change what the filter says of the node. True where only trying tells."""
        return True

    def room(self, ctx: CycleContext) -> Vector | None:
        """By slot, how many pods of the shape the filter lets in one after another; None where only trying tells."""
        return None

    def rejection(self, ctx: CycleContext, code: int) -> Rejection:
        """What a (refined) code means."""
        raise NotImplementedError(f"filter refused a node with code {code}: write rejection, which says why")

    def filter_stamp(self, ctx: CycleContext) -> Any:
        """Changes when rows that did not change themselves must be looked at again (counts over several nodes, time)."""
        return None


class PreferNodes(Plugin):
    """Names nodes in order of preference; the first that passes all filters is taken without scoring."""

    def prefer_nodes(self, ctx: CycleContext, candidates: NDArray[np.bool_]) -> tuple[Status, Sequence[str]]:
        raise NotImplementedError


class PreScore(Plugin):
    """Looks at the pod before scoring; SKIP switches the plugin's score off."""

    def pre_score(self, ctx: CycleContext) -> Status:
        raise NotImplementedError


class Score(Plugin):
    """Prefers nodes: raw values by row, brought to 0..100 by `normalizer` (None: they are 0..100 already).

    Write `score`, or `score_row` if one node at a time is all you want; rows are as for `Filter`, and only feasible ones count.
    """

    score_reads: int = NODE | PODS
    normalizer: ClassVar[Normalizer | None] = None
    uses_feasible: ClassVar[bool] = False  # True: raw scores depend on which nodes are feasible (`ctx.feasible`)
    takes_slot: ClassVar[bool] = False  # as `Filter.takes_slot`

    def score(self, ctx: CycleContext, rows: Rows) -> Vector | float:
        """Raw scores of the rows; a plain number means the same for every one of them."""
        slots = ctx.cluster.slots[rows]
        scores = np.zeros(len(slots))
        for index in np.flatnonzero(ctx.feasible[slots]).tolist():
            scores[index] = self.score_row(ctx, slots.item(index))
        return scores

    def score_row(self, ctx: CycleContext, slot: int) -> float:
        """Raw score of one node. Asked only where `score` is not written."""
        raise NotImplementedError("write score or score_row")

    def score_stamp(self, ctx: CycleContext) -> Any:
        """As `Filter.filter_stamp`."""
        return None

    def normalizer_of(self, ctx: CycleContext) -> Normalizer | None:
        """Which normalizer pods of this shape get."""
        return self.normalizer


# ---------------------------------------------------------------- reservations


class Restorer(Plugin):
    """Knows which reservations a pod may use (framework/restoring.py; one plugin in a profile). Answers may depend on what `shape_key`
    tells apart, and on the rows' changes in `restore_reads`: a change of a reservation must be noted for its row."""

    restore_reads: int = NODE

    def connect(self, filters: Sequence[ReservationFilter]) -> None:
        """Told once which plugins of the profile have a say on reservations."""

    def restored_rows(self, ctx: CycleContext) -> dict[int, tuple[RestoredReservation, ...]] | None:
        """Usable reservations by slot; None when pods of this shape and key can never use any."""
        raise NotImplementedError

    def restored_row(self, ctx: CycleContext, slot: int) -> tuple[RestoredReservation, ...]:
        """Usable reservations of one slot; the same object as before where nothing changed."""
        raise NotImplementedError

    def nominate(self, ctx: CycleContext, slot: int) -> RestoredReservation | None:
        """The reservation that the pod will use on the slot that was chosen, of those that pass `fits_reservation` of all plugins."""
        raise NotImplementedError

    def may_open(self, ctx: CycleContext) -> bool:
        """Whether nodes that others refused may suit the pod once it may use more there: it waits for this plugin's events, too."""
        return False


class ReservationFilter(Plugin):
    """Says whether a pod could take what it needs with the help of one reservation; a node passes when one reservation does. The restorer
    keeps its answers: `reads` and subscriptions are as for `Filter`."""

    reads: int = NODE | PODS

    def fits_reservation(self, ctx: CycleContext, slot: int, reservation: RestoredReservation) -> tuple[str, ...]:
        """Reasons why not, each as it is told to users; () when it could. Called inside `ctx.restoring(slot)`."""
        raise NotImplementedError

    def fits_alone(self, ctx: CycleContext, slot: int) -> tuple[str, ...]:
        """The same without the help of any reservation: all of them keep what they hold. Called inside `ctx.restoring(slot)`."""
        return ()


class ReserveFailure(Plugin):
    """Knows what a Reservation shows of an attempt that failed."""

    def failure_status(self, pod: PodInfo, message: str, now: float) -> dict[str, Any] | None:
        """The merge patch of the Reservation's status, for the version that was seen; None when it says so already."""
        raise NotImplementedError


# ---------------------------------------------------------------- no node was found


class PostFilter(Plugin):
    """Asked when no node is left; may propose to make room (preemption). Pure: the planner carries the proposal out. Work that takes more
    than a few milliseconds is handed back as steps (framework/steps.py)."""

    def post_filter(self, ctx: CycleContext, failure: Any) -> PostFilterResult | Steps[PostFilterResult]:
        """`failure` is the cycle's `FitFailure`, which also tells which nodes preemption could help and tries what-ifs."""
        raise NotImplementedError

    def after_post_filter(self, ctx: CycleContext, failure: Any, result: PostFilterResult) -> Steps[None] | None:
        """Told after all postFilter plugins, whatever came out. What is to be written or told goes into `ctx.effects`."""


# ---------------------------------------------------------------- placing


class ResizePod(Plugin):
    """May change the requests of a pod after its node was chosen, before it is assumed (gate ResizePod)."""

    def resize(self, ctx: CycleContext, slot: int) -> PodInfo | None:
        raise NotImplementedError


class Reserve(Plugin):
    """Takes what the pod needs on the chosen node; `unreserve` gives it back and must bear being called without a reserve, and after the
    pod or the node has gone."""

    def reserve(self, ctx: CycleContext, slot: int) -> Status:
        """By default nothing: columns follow every pod that counts on a node, and it counts there already."""
        return SUCCESS

    def unreserve(self, ctx: CycleContext, slot: int) -> None:
        """`slot` is that of the node `ctx.node` now, -1 when the node is gone. By default nothing."""


class Forget(Plugin):
    """Told when an assumed pod is taken back, also when it was not known."""

    def forget(self, pod: PodInfo) -> None:
        raise NotImplementedError


class Permit(Plugin):
    """Lets a placed pod go on, refuses it, or holds it (`status.wait`)."""

    def permit(self, ctx: CycleContext, slot: int) -> Status:
        raise NotImplementedError


# ---------------------------------------------------------------- binding


class PreBind(Plugin):
    """Prepares the binding: writes into the draft, or waits for something outside."""

    def waits(self, ctx: CycleContext) -> bool:
        """Whether `pre_bind` may take long for this pod: it then keeps no worker from binding others."""
        return False

    async def pre_bind(self, ctx: CycleContext, node: str, draft: BindDraft) -> Status:
        raise NotImplementedError


class PreBindPatch(Plugin):
    """Applies the draft of all preBind plugins in one request. The first that does not SKIP ends the chain."""

    async def apply(self, ctx: CycleContext, node: str, draft: BindDraft) -> Status:
        raise NotImplementedError

    async def withdraw(self, ctx: CycleContext, written: Mapping[str, str]) -> None:
        """Others have bound the pod: annotations that `apply` wrote for another placement go, where they still are as written. By default
        nothing."""


class Bind(Plugin):
    """Binds; the first that does not SKIP decides."""

    async def bind(self, ctx: CycleContext, node: str) -> Status:
        raise NotImplementedError


class PostBind(Plugin):
    """Told after a successful bind."""

    def post_bind(self, ctx: CycleContext, node: str) -> None:
        raise NotImplementedError


# ---------------------------------------------------------------- names in config files


class Point(enum.Enum):
    """Extension points in the words of KubeSchedulerConfiguration, with the interface that implements each."""

    PRE_ENQUEUE = ("preEnqueue", PreEnqueue)
    QUEUE_SORT = ("queueSort", QueueSort)
    PRE_FILTER = ("preFilter", PreFilter)
    FILTER = ("filter", Filter)
    POST_FILTER = ("postFilter", PostFilter)
    PRE_SCORE = ("preScore", PreScore)
    SCORE = ("score", Score)
    RESERVE = ("reserve", Reserve)
    PERMIT = ("permit", Permit)
    PRE_BIND = ("preBind", (PreBind, PreBindPatch))
    BIND = ("bind", Bind)
    POST_BIND = ("postBind", PostBind)

    @property
    def wire(self) -> str:
        """The name in config files."""
        return str(self.value[0])

    def implemented_by(self, plugin: type[Plugin]) -> bool:
        """Whether a plugin class takes part in this point."""
        return issubclass(plugin, self.value[1])
