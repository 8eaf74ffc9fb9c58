"""Tests of `millraced convert` on checkpoints that PyTorch writes: every tensor is PyTorch's own, and what is wrong is named."""
import json
import os
import pathlib
import pickle
import resource
import shutil
import struct
import subprocess

import httpx
import numpy
import pytest

import tiny_qwen3
from daemon import environment, program

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # PyTorch starts once a rank.
ROOT = pathlib.Path(__file__).parent.parent
CASES = ["rows", "rows_safetensors", "columns", "grid", "whole", "titan", "rounded"]
PROMPT = "Once upon a time"


def read_safetensors(path):
    """Returns (dtype, shape, bytes) by name."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + size])
    return {name: (entry["dtype"], entry["shape"], content[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items() if name != "__metadata__"}


def read_folder(folder):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {file: read_safetensors(folder / file) for file in sorted(set(index["weight_map"].values()))}
    assert {name: file for file, tensors in files.items() for name in tensors} == index["weight_map"]
    tensors = {name: tensor for file in files.values() for name, tensor in file.items()}
    assert sum(len(content) for _, _, content in tensors.values()) == index["metadata"]["total_size"]
    return tensors


def convert(*arguments, limit=None):
    """Returns the exit status, stdout and stderr."""
    done = subprocess.run([program(), "convert", *map(str, arguments)], env=environment(), capture_output=True, text=True, timeout=120, preexec_fn=limit)
    return done.returncode, done.stdout, done.stderr


def torch_python():
    """Returns the Python with PyTorch, which scripts/setup.sh installs for packages."""
    script = 'source scripts/common.sh && echo "$(venv_path package)/bin/python"'
    return subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def write_llama(folder):
    """A Llama of the tiny Qwen3's tensors."""
    tiny_qwen3.write(folder, modules=False, architectures=["LlamaForCausalLM"], model_type="llama")
    tensors = {name: tensor for name, tensor in read_safetensors(folder / "model.safetensors").items() if "_norm.weight" not in name.split("self_attn.")[-1]
               or "self_attn" not in name}
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns made(ranks), a folder with a model in `model` and checkpoints of it: a Llama by 2 ranks, a Qwen3 by 4."""
    folders = {}

    def make(ranks):
        if ranks in folders:
            return folders[ranks]
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        model = write_llama(folder / "model") if ranks == 2 else tiny_qwen3.write(folder / "model", modules=False)
        packages = folder / "packages"  # PyTorch's own environment has no NumPy, which these tests have
        packages.mkdir()
        for path in pathlib.Path(numpy.__file__).parent.parent.glob("numpy*"):
            (packages / path.name).symlink_to(path)
        heads = ("4", "2") if ranks == 2 else ("0", "0")
        subprocess.run([torch_python(), ROOT / "tests" / "checkpoints" / "write_checkpoints.py", folder / "made", str(ranks), model / "model.safetensors", *heads],
                       env={**os.environ, "PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"}, check=True, stderr=subprocess.DEVNULL)
        folders[ranks] = folder
        return folder

    return make


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_every_tensor_is_pytorchs(made, tmp_path, ranks, case):
    folder = made(ranks)
    more = ("--output-dtype", "bfloat16") if case == "rounded" else ()
    code, out, err = convert(folder / "made" / case, tmp_path / "new", "--model-config", folder / "model", "--shard-size", "100000", *more)
    assert code == 0, err
    expected = read_safetensors(folder / "made" / f"{case}.safetensors")
    converted = read_folder(tmp_path / "new")
    assert set(converted) == set(expected)
    for name, tensor in expected.items():
        assert converted[name] == tensor, name
    assert f"{len(expected)} tensors in " in out
    assert len(list((tmp_path / "new").glob("model-*.safetensors"))) > 1
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "new" / name).read_bytes() == (folder / "model" / name).read_bytes()


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_check_prints_what_the_model_serves(made, start_server, tmp_path, ranks):
    folder = made(ranks)
    tables = []
    for case in ("whole", "titan"):
        code, out, err = convert(folder / "made" / case, tmp_path / case, "--model-config", folder / "model", "--check", PROMPT)
        assert code == 0, err
        tables.append([line for line in out.splitlines() if not line.startswith(("model-", str(tmp_path)))])
    assert tables[0] == tables[1]
    server = start_server("--model", str(folder / "model"))
    body = {"prompt": PROMPT, "max_tokens": 1, "echo": True, "logprobs": 0}
    (choice,) = httpx.post(server.http + "/v1/completions", json=body, timeout=60).json()["choices"]
    served = [f"{value:.4f}" for value in choice["logprobs"]["token_logprobs"][1:-1]]
    assert [line.split()[1] for line in tables[0][2:-1]][:len(served)] == served


def test_rules_name_other_tensors(made, tmp_path):
    folder = made(2)
    rules = tmp_path / "my.rules"
    rules.write_text("# all of it\nmodel.layers.#.self_attn.* body.#.attention.*\nmodel.* body.*\nlm_head.weight -\n")
    code, _, err = convert(folder / "made" / "grid", tmp_path / "new", "--model-config", folder / "model", "--rules", rules)
    assert code == 0, err
    names = set(read_folder(tmp_path / "new"))
    assert "body.2.attention.q_proj.weight" in names and "body.embed_tokens.weight" in names and all(name.startswith("body.") for name in names)
    rules.write_text("model.layers.* body.*\n")
    assert "tensor model.embed_tokens.weight: no rule names it" in convert(folder / "made" / "grid", tmp_path / "other", "--model-config", folder / "model", "--rules", rules)[2]


class Evil:
    def __reduce__(self):
        return os.system, ("touch ran",)


def test_what_is_wrong_is_named_and_leaves_nothing(made, tmp_path):
    folder = made(2)

    def attempt(change, target="new", limit=None):
        broken = tmp_path / "broken"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(folder / "made" / "rows", broken)
        change(broken)
        code, _, err = convert(broken, tmp_path / target, "--model-config", folder / "model", limit=limit)
        assert code == 1 and err.count("\n") == 1
        assert not list(tmp_path.glob("new*"))
        return err

    def cut(broken):
        file = broken / "__1_0.distcp"
        os.truncate(file, file.stat().st_size // 2)

    assert "__1_0.distcp" in attempt(lambda broken: (broken / "__1_0.distcp").unlink())
    assert "__1_0.distcp: tensor model." in attempt(cut)
    assert "has no .metadata" in attempt(lambda broken: (broken / ".metadata").unlink())
    assert "posix.system" in attempt(lambda broken: (broken / ".metadata").write_bytes(pickle.dumps(Evil())))
    assert not pathlib.Path("ran").exists()
    (tmp_path / "full" / "more").mkdir(parents=True)
    assert "expected a new or an empty folder" in attempt(lambda _: None, "full")
    # A file that cannot be written to its end, as on a full disk: Python has the signal ignored.
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # noqa: E731
    assert "model-00001-of-00001.safetensors: write: File too large" in attempt(lambda _: None, limit=limit)


def test_the_command_line_says_what_it_wants(tmp_path):
    for arguments in ((), ("a",), ("a", "b"), ("a", "--model-config", "c")):
        assert "millraced convert CHECKPOINT FOLDER --model-config FOLDER" in convert(*arguments)[2]
    assert "which converts a checkpoint" in convert("a", "b", "--model-config", "c", "--threads", "2")[2]
    done = subprocess.run([program(), "a.gguf", "--check", "x"], env=environment(), capture_output=True, text=True, timeout=60)
    assert "allowed only with `millraced convert`" in done.stderr
