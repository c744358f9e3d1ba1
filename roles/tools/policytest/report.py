"""Results as text and as JUnit XML. Pure (BEY-POL-01)."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable

from roles.tools.policytest.running import Result


def lines(result: Result) -> Iterable[str]:
    """A line for a case, one for each thing that it did not try, and three for each expectation that was not met."""
    yield f"{'ok  ' if not result.failures else 'FAIL'} {result.name}"
    yield from (f"     {note}" for note in result.notes)
    for failure in result.failures:
        yield f"     {result.path}:{failure.line}"
        yield f"       expected  {failure.expected}"
        yield f"       found     {failure.found}"


def summary(results: list[Result]) -> str:
    failed = sum(1 for result in results if result.failures)
    total = f"{len(results)} {'case' if len(results) == 1 else 'cases'}"
    return f"{total}, {failed} failed" if failed else f"{total}, all as expected"


def junit(results: list[Result]) -> str:
    """What CI systems read: a suite for each file."""
    root = ET.Element("testsuites")
    for path in dict.fromkeys(result.path for result in results):
        own = [result for result in results if result.path == path]
        failed = sum(1 for result in own if result.failures)
        seconds = f"{sum(result.seconds for result in own):.3f}"
        suite = ET.SubElement(root, "testsuite", name=str(path), tests=str(len(own)), failures=str(failed), time=seconds)
        for result in own:
            case = ET.SubElement(suite, "testcase", classname=str(path), name=result.name, time=f"{result.seconds:.3f}")
            case.attrib.update(file=str(path), line=str(result.line))
            for failure in result.failures:
                node = ET.SubElement(case, "failure", message=f"expected {failure.expected}; found {failure.found}")
                node.text = f"{path}:{failure.line}"
            if result.notes:
                ET.SubElement(case, "system-out").text = "\n".join(result.notes)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)
