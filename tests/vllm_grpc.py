"""Python stubs of vllm.grpc.engine, generated from the proto of this tree when first imported."""
import atexit
import pathlib
import shutil
import sys
import tempfile

import grpc
from grpc_tools import protoc

PROTO = pathlib.Path(__file__).parent.parent / "proto"

_folder = tempfile.mkdtemp(prefix="millrace-vllm-stubs-")
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
if protoc.main(["protoc", f"--proto_path={PROTO}", f"--python_out={_folder}", f"--grpc_python_out={_folder}", "vllm/common.proto",
                "vllm/engine.proto"]) != 0:
    raise RuntimeError("protoc failed")
sys.path.insert(0, _folder)

from vllm import common_pb2 as common  # noqa: E402, F401
from vllm import engine_pb2 as pb  # noqa: E402
from vllm import engine_pb2_grpc  # noqa: E402


def connect(address):
    """Returns a stub on a channel of its own."""
    return engine_pb2_grpc.VllmEngineStub(grpc.insecure_channel(address))
