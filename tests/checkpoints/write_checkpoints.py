"""Writes distributed checkpoints with PyTorch, and what must become of them: write_checkpoints.py FOLDER RANKS SAFETENSORS HEADS KEY_HEADS.

SAFETENSORS is a model's file with Hugging Face's names. FOLDER/CASE is a checkpoint of so many ranks, and FOLDER/CASE.safetensors has the tensors that
its conversion must give.
"""
import json
import pathlib
import struct
import sys
import types

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F8_E4M3": torch.float8_e4m3fn, "I64": torch.int64}
TITAN = {
    "model.embed_tokens.weight": "tok_embeddings.weight", "model.norm.weight": "norm.weight", "lm_head.weight": "output.weight",
    "self_attn.q_proj.weight": "attention.wq.weight", "self_attn.k_proj.weight": "attention.wk.weight", "self_attn.v_proj.weight": "attention.wv.weight",
    "self_attn.o_proj.weight": "attention.wo.weight", "self_attn.q_norm.weight": "attention.q_norm.weight", "self_attn.k_norm.weight": "attention.k_norm.weight",
    "mlp.gate_proj.weight": "feed_forward.w1.weight", "mlp.down_proj.weight": "feed_forward.w2.weight", "mlp.up_proj.weight": "feed_forward.w3.weight",
    "input_layernorm.weight": "attention_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight",
}


def save_safetensors(tensors, metadata=None):
    """Returns a safetensors file: the length of a JSON header, the header, and the data."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, tensor in tensors.items():
        dtype = next(key for key, value in DTYPES.items() if value == tensor.dtype)
        content = bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def load_safetensors(path):
    content = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    tensors = {}
    for name, entry in json.loads(content[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            tensors[name] = torch.frombuffer(bytearray(content[begin:end]), dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def provide_safetensors():
    """PyTorch's writer of the newer form imports safetensors, which is not among PyTorch's own packages."""
    try:
        import safetensors.torch  # noqa: F401
    except ImportError:
        package, module = types.ModuleType("safetensors"), types.ModuleType("safetensors.torch")
        module.save, package.torch = save_safetensors, module
        sys.modules.update({"safetensors": package, "safetensors.torch": module})


def titan_name(name):
    parts = name.split(".")
    return f"layers.{parts[2]}.{TITAN['.'.join(parts[3:])]}" if name.startswith("model.layers.") else TITAN[name]


def rotated(weight, heads, back):
    """Puts the rows of each head from halves to pairs, or back, as torchtitan's Llama 3 has them."""
    rows = weight.shape[0] // heads
    split = (heads, rows // 2, 2) if back else (heads, 2, rows // 2)
    return weight.view(*split, -1).transpose(1, 2).reshape(weight.shape).contiguous()


def titan_state(model, heads, key_heads):
    state = {}
    for name, tensor in model.items():
        for part, count in (("q_proj.weight", heads), ("k_proj.weight", key_heads)):
            if name.endswith(part) and count:
                tensor = rotated(tensor, count, back=False)
        state[titan_name(name)] = tensor
    return state


def sharded(tensors, mesh, placements_of):
    return {name: distribute_tensor(tensor, mesh, placements_of(tensor), src_data_rank=None) for name, tensor in tensors.items()}


def mixed(model):
    """The model with tensors of other types."""
    tensors = dict(model)
    for i, name in enumerate(list(tensors)):
        if i % 3 == 1:
            tensors[name] = tensors[name].to(torch.bfloat16)
    name = next(name for name in tensors if name.endswith("o_proj.weight"))
    tensors[name] = model[name].to(torch.float8_e4m3fn)
    tensors[name + "_scale"] = torch.tensor(0.5)
    return tensors


def run(rank, folder, ranks, source, heads, key_heads):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    provide_safetensors()
    model = load_safetensors(source)
    line = init_device_mesh("cpu", (ranks,))
    grid = init_device_mesh("cpu", (2, ranks // 2))
    rows = lambda tensor: [Shard(0)] if tensor.dim() else [Replicate()]  # noqa: E731
    columns = lambda tensor: [Shard(1) if tensor.dim() > 1 else Replicate()]  # noqa: E731
    both = lambda tensor: [Shard(0), Shard(1)] if tensor.dim() > 1 else [Replicate(), Shard(0)] if tensor.dim() else [Replicate()] * 2  # noqa: E731
    optimizer = {"state": {name: {"exp_avg": tensor, "step": torch.tensor(1.0)} for name, tensor in sharded(model, line, rows).items()},
                 "param_groups": [{"lr": 0.1, "params": list(model)}]}
    titan = titan_state(model, heads, key_heads)
    cases = {
        "rows": ({"model": sharded(mixed(model), line, rows), "optim": optimizer, "train_state": {"step": 3}}, False, mixed(model)),
        "rows_safetensors": ({"model": sharded(mixed(model), line, rows), "optim": optimizer, "train_state": {"step": 3}}, True, mixed(model)),
        "columns": ({"app": {"model": sharded(model, line, columns), "optim": optimizer}}, False, model),
        "grid": (sharded(model, grid, both), False, model),
        "whole": ({"model": {name.replace("layers.0.", "layers.0._orig_mod."): tensor for name, tensor in model.items()}}, False, model),
        "titan": ({**sharded(titan, line, rows), "optimizer": optimizer}, False, model),
        "rounded": ({"model": sharded(model, line, rows)}, False, {name: tensor.to(torch.bfloat16) for name, tensor in model.items()}),
    }
    for name, (state, as_safetensors, expected) in cases.items():
        form = SerializationFormat.SAFETENSORS if as_safetensors else SerializationFormat.TORCH_SAVE
        dcp.save(state, storage_writer=FileSystemWriter(folder / name, serialization_format=form, thread_count=1 if as_safetensors else 2))
        if rank == 0:
            (folder / f"{name}.safetensors").write_bytes(save_safetensors(expected))
            if name in ("rows", "columns", "grid"):
                check_by_pytorch(folder / name, expected)
    dist.barrier()
    dist.destroy_process_group()


def check_by_pytorch(checkpoint, expected):
    """PyTorch's own conversion must give what is expected, too."""
    whole = checkpoint.with_suffix(".pt")
    dcp_to_torch_save(checkpoint, whole)
    state = torch.load(whole, weights_only=False)
    state = state.get("app", state)
    state = state.get("model", state)
    assert set(state) == set(expected)
    for name, tensor in state.items():
        assert tensor.dtype == expected[name].dtype and torch.equal(tensor.float(), expected[name].float()), name
    whole.unlink()


def main():
    folder, ranks, source = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]), sys.argv[3]
    folder.mkdir(parents=True, exist_ok=True)
    torch.multiprocessing.spawn(run, args=(folder, ranks, source, int(sys.argv[4]), int(sys.argv[5])), nprocs=ranks)


if __name__ == "__main__":
    main()
