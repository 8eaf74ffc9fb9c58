"""Black-box tests of several hosts: processes on 127.0.0.1 that share a model's ranks, each with cores of this machine."""
import concurrent.futures
import os
import random
import signal
import socket
import subprocess
import time

import httpx
import pytest

from daemon import LONG, Stream, environment, on_a_gpu, program, run, status, wait_until
from packed_folder import Twin

pytestmark = [pytest.mark.skipif(on_a_gpu(), reason="these ranks are threads on the CPU")]

KEY = "a key of these tests"
