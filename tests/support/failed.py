"""Node IDs of the tests that failed, read from JUnit files: `python -m tests.support.failed FILE…`, a line each."""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def node_id(classname: str, name: str) -> str:
    """`tests.e2e.test_x.TestY` and `test_z[1]` as `tests/e2e/test_x.py::TestY::test_z[1]`; classname alone where collecting failed."""
    parts = classname.split(".") if classname else name.split(".")
    at = next((n for n in range(len(parts), 0, -1) if Path(*parts[:n]).with_suffix(".py").is_file()), len(parts))
    path = str(Path(*parts[:at]).with_suffix(".py"))
    return "::".join([path, *parts[at:], name]) if classname else path


def failed(paths: list[str]) -> list[str]:
    """What failed or had an error in these files; one that is missing is left out."""
    found: dict[str, None] = {}
    for path in paths:
        if not Path(path).is_file():
            continue
        for case in ET.parse(path).iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                found[node_id(case.get("classname", ""), case.get("name", ""))] = None
    return list(found)


if __name__ == "__main__":
    print("\n".join(failed(sys.argv[1:])), end="")
