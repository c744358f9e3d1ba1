"""Projections of volumes, claims and storage classes. See ``koord.api.objects`` for the conventions."""

from __future__ import annotations

from msgspec import field

from koord.api.objects_meta import LabelSelector, Object, ObjectReference, Projection, ResourceList
from koord.api.objects_pod import CSIVolumeSource, DiskVolumeSource, HostPathVolumeSource, NodeSelector, PersistentVolumeClaimSpec


class PersistentVolumeClaimStatus(Projection):
    """core/v1 PersistentVolumeClaimStatus."""

    phase: str = ""
    access_modes: tuple[str, ...] = ()
    capacity: ResourceList = {}


class PersistentVolumeClaim(Object):
    """core/v1 PersistentVolumeClaim."""

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class VolumeNodeAffinity(Projection):
    """From which nodes a volume can be used."""

    required: NodeSelector | None = None


class CSIPersistentVolumeSource(CSIVolumeSource):
    """The CSI source of a PersistentVolume."""

    volume_handle: str = ""


class LocalVolumeSource(Projection):
    """A directory or disk of one node."""

    path: str = ""


class PersistentVolumeSpec(Projection):
    """core/v1 PersistentVolumeSpec."""

    capacity: ResourceList = {}
    access_modes: tuple[str, ...] = ()
    claim_ref: ObjectReference | None = None
    storage_class_name: str = ""
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSIPersistentVolumeSource | None = None
    local: LocalVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    gce_persistent_disk: DiskVolumeSource | None = None
    aws_elastic_block_store: DiskVolumeSource | None = None
    azure_disk: DiskVolumeSource | None = None
    rbd: DiskVolumeSource | None = None
    iscsi: DiskVolumeSource | None = None


class PersistentVolumeStatus(Projection):
    """core/v1 PersistentVolumeStatus."""

    phase: str = ""


class PersistentVolume(Object):
    """core/v1 PersistentVolume."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class TopologySelectorLabelRequirement(Projection):
    """A label with the values that are allowed."""

    key: str = ""
    values: tuple[str, ...] = ()


class TopologySelectorTerm(Projection):
    """Label requirements that must all hold."""

    match_label_expressions: tuple[TopologySelectorLabelRequirement, ...] = ()


class StorageClass(Object):
    """storage.k8s.io/v1 StorageClass. ``volume_binding_mode`` None means Immediate."""

    provisioner: str = ""
    parameters: dict[str, str] = {}
    volume_binding_mode: str | None = None
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


class VolumeNodeResources(Projection):
    """How many volumes of a driver a node takes."""

    count: int | None = None


class CSINodeDriver(Projection):
    """A CSI driver on a node."""

    name: str = ""
    node_id: str = field(default="", name="nodeID")
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(Projection):
    """storage.k8s.io/v1 CSINodeSpec."""

    drivers: tuple[CSINodeDriver, ...] = ()


class CSINode(Object):
    """storage.k8s.io/v1 CSINode."""

    spec: CSINodeSpec = CSINodeSpec()


class CSIDriverSpec(Projection):
    """storage.k8s.io/v1 CSIDriverSpec."""

    storage_capacity: bool | None = None
    prevent_pod_scheduling_if_missing: bool | None = None


class CSIDriver(Object):
    """storage.k8s.io/v1 CSIDriver."""

    spec: CSIDriverSpec = CSIDriverSpec()


class CSIStorageCapacity(Object):
    """storage.k8s.io/v1 CSIStorageCapacity."""

    node_topology: LabelSelector | None = None
    storage_class_name: str = ""
    capacity: str | int | float | None = None
    maximum_volume_size: str | int | float | None = None


class VolumeAttachmentSource(Projection):
    """The volume of a VolumeAttachment."""

    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Projection):
    """storage.k8s.io/v1 VolumeAttachmentSpec."""

    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(Object):
    """storage.k8s.io/v1 VolumeAttachment."""

    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()
