"""Makes `koord/apiserver/protobuf/messages.binpb`, Kubernetes' protobuf messages, from its published `generated.proto` files.

usage: .venv/bin/python packaging/builtin_messages.py FOLDER, which has `k8s.io/api` and `k8s.io/apimachinery` as the Go modules hold them

Only messages that a client may send as a request body, and what they are made of, are kept.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from koord.apiserver.protobuf.decode import MESSAGES, message_name
from koord.apiserver.resources import BUILTIN, SUBRESOURCE_KINDS, api_version

_ENVELOPE = "k8s.io.apimachinery.pkg.runtime.Unknown"


def main(folder: str) -> None:
    """Compile what the kinds of the server are made of, without comments."""
    sources = {str(path.relative_to(folder)) for path in Path(folder).glob("k8s.io/*/**/generated.proto")}
    bodies = [*(row[:3] for row in BUILTIN), *SUBRESOURCE_KINDS.values(), ("", "v1", "DeleteOptions")]
    wanted = [message_name(api_version(group, version), kind) for group, version, kind in bodies]
    with tempfile.NamedTemporaryFile() as out:
        failed = protoc.main(["protoc", f"-I{folder}", "--include_imports", f"--descriptor_set_out={out.name}", *sorted(sources)])
        if failed:
            raise SystemExit(failed)
        files = descriptor_pb2.FileDescriptorSet.FromString(Path(out.name).read_bytes()).file
    messages = {f"{file.package}.{message.name}": message for file in files for message in file.message_type}
    kept: set[str] = set()
    waiting = [*wanted, _ENVELOPE]
    while waiting:
        name = waiting.pop()
        if name in messages and name not in kept:
            kept.add(name)
            parts = [messages[name], *messages[name].nested_type]
            waiting += [field.type_name.lstrip(".") for part in parts for field in part.field if field.type_name]
    for file in files:
        inside = [message for message in file.message_type if f"{file.package}.{message.name}" in kept]
        del file.message_type[:]
        file.message_type.extend(inside)
        file.ClearField("options")
    made = descriptor_pb2.FileDescriptorSet(file=[file for file in files if file.message_type])
    for file in made.file:
        present = [name for name in file.dependency if any(other.name == name for other in made.file)]
        del file.dependency[:]
        file.dependency.extend(present)
    MESSAGES.write_bytes(made.SerializeToString(deterministic=True))
    print(f"{len(kept)} messages, without {sorted(set(wanted) - kept)}")


if __name__ == "__main__":
    main(sys.argv[1])
