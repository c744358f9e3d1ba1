"""Fits the demo to the machine: load and jobs by the CPUs that are free, requests by what koord offers (pure)."""

from __future__ import annotations

import math

from koord.api.quantity import parse_milli
from roles.sandbox.scenario import Batch, LoadStep, Scenario

USUAL_CPUS = 2
"""The scenario as written is for so many free CPUs."""
MOST_RATE = 800.0
"""Requests a second that one load generator sends without being late; on larger machines a request costs more instead."""
MOST_FREE, MOST_WORKERS = 128.0, 64
MOST_REQUEST_SHARE = 0.6
"""Of the node's CPUs, for the service."""
LEAST_REQUEST = 20
USUAL_REQUEST = 100
"""milli-CPU of a burner where nothing says what koord offers."""
MEMORY_BURNER_REQUEST = 30
"""milli-CPU of a pod that holds memory."""
STEP = 10
USED_OF_OFFER = 0.9
"""The offer follows the use of the node: jobs that request all of it would not all be placed a moment later."""


def fitted(scenario: Scenario, cpus: int, free: float) -> Scenario:
    """The scenario for a machine of `cpus` CPUs of which `free` are free: the same shape of load, the same share of what is free."""
    factor = min(max(free, 0.1), MOST_FREE) / USUAL_CPUS
    highest = max(step.rate for step in scenario.load.steps)
    rates = min(factor, MOST_RATE / highest)
    cost = scenario.service.cpu_milliseconds_per_request * factor / rates
    steps = [LoadStep(rate=max(round(step.rate * rates), 1), seconds=step.seconds) for step in scenario.load.steps]
    service = scenario.service.model_copy(
        update={
            "cpu_milliseconds_per_request": cost,
            "workers": min(max(round(scenario.service.workers * factor), 1), MOST_WORKERS),
            "cpu_request": f"{round(MOST_REQUEST_SHARE * cpus * 1000)}m",
        }
    )
    burners = math.ceil(scenario.batch.cpu_burners * cpus / USUAL_CPUS)
    batch = scenario.batch.model_copy(update={"cpu_burners": min(max(burners, 1), 256)})
    load = scenario.load.model_copy(update={"steps": steps, "cpu_request": f"{min(100 * cpus, 200)}m"})
    return scenario.model_copy(update={"service": service, "batch": batch, "load": load})


def request_of_each(batch: Batch, offer: int | None) -> int:
    """milli-CPU that each CPU burner requests in every phase: as the scenario says, else so that all fit into what koord offers here."""
    if batch.cpu_request:
        return parse_milli(batch.cpu_request)
    if offer is None or batch.cpu_burners == 0:
        return USUAL_REQUEST
    room = offer * USED_OF_OFFER - batch.memory_burners * MEMORY_BURNER_REQUEST
    return max(LEAST_REQUEST, int(room / batch.cpu_burners) // STEP * STEP)
