"""Python stubs of millrace.v1, generated from the proto of this tree when first imported."""
import atexit
import pathlib
import shutil
import sys
import tempfile

import grpc
from grpc_tools import protoc

PROTO = pathlib.Path(__file__).parent.parent / "proto"

_folder = tempfile.mkdtemp(prefix="millrace-stubs-")
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
if protoc.main(["protoc", f"--proto_path={PROTO}", f"--python_out={_folder}", f"--grpc_python_out={_folder}",
                "millrace/v1/inference.proto"]) != 0:
    raise RuntimeError("protoc failed")
sys.path.insert(0, _folder)

from millrace.v1 import inference_pb2 as pb  # noqa: E402
from millrace.v1 import inference_pb2_grpc  # noqa: E402


def connect(address):
    """Returns a stub on a channel of its own."""
    return inference_pb2_grpc.InferenceStub(grpc.insecure_channel(address))
