#!/usr/bin/env python3
"""Makes an AOTInductor package (.pt2) of a PyTorch module, for `millraced --device torch --model PACKAGE.pt2`.

    scripts/export_package.sh MODULE.py PACKAGE.pt2

MODULE.py defines `package()`, which returns the arguments of `export_package` below as a dict, or, for a language model, those of
`export_causal_lm`. The package holds the module's
code, compiled for this machine's processor, its weights, and what its inputs and outputs are. It is a program: serve only
packages that you would run.
"""
import importlib.util
import json
import pathlib
import sys
import warnings

# torch asks for NumPy, which nothing here needs.
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import torch  # noqa: E402
import torch._inductor  # noqa: E402

DATATYPES = {torch.bool: "BOOL", torch.uint8: "UINT8", torch.int8: "INT8", torch.int16: "INT16", torch.int32: "INT32",
             torch.int64: "INT64", torch.float16: "FP16", torch.bfloat16: "BF16", torch.float32: "FP32",
             torch.float64: "FP64"}
WHOLE = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
MOST = 2**31 - 1  # of a dimension


def fail(what):
    sys.exit(f"export_package: {what}")


def datatype(name, tensor):
    if tensor.dtype not in DATATYPES:
        fail(f"{name}: dtype is {tensor.dtype}; allowed: {', '.join(map(str, DATATYPES))}")
    return DATATYPES[tensor.dtype]


def placeholders(program):
    """The graph's nodes of the module's inputs, in their order."""
    names = program.graph_signature.user_inputs
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    return [nodes[name] for name in names]


def rows_looked_up(program, node):
    """The number of rows of the smallest embedding that looks `node` up as it is; None if none does."""
    rows = [user.args[0].meta["val"].shape[0] for user in node.users
            if user.target is torch.ops.aten.embedding.default and user.args[1] is node]
    return min(rows, default=None)


def value_range(program, name, node, tensor, values):
    """What the elements of an input of whole numbers may be: the compiled code reads its memory by them."""
    if tensor.dtype not in WHOLE:
        if name in values:
            fail(f"values: {name} is {tensor.dtype}; allowed: inputs of whole numbers")
        return None
    if name in values:
        return list(values[name])
    rows = rows_looked_up(program, node)
    if rows is None or len(node.users) > 1:
        fail(f"values: {name} is missing; an input of whole numbers that is not only looked up in an embedding needs "
             f"(least, most), such as (0, 29999)")
    return [0, rows - 1]


def shape_of(program, value, names):
    """A shape for the package: a size, or {"name", "min", "max"} where it is dynamic."""
    shape = []
    for size in value.shape:
        if isinstance(size, int):
            shape.append(size)
            continue
        expression = size.node.expr
        bounds = program.range_constraints.get(expression) or size.node.shape_env.bound_sympy(expression)
        name = names.get(expression, str(expression))
        shape.append({"name": name, "min": int(bounds.lower), "max": min(int(bounds.upper), MOST)})
    return shape


def dimension_names(nodes, inputs, dynamic):
    """The names that `dynamic` gives, by the symbols of the graph."""
    names = {}
    for (name, _), node in zip(inputs.items(), nodes):
        for index, dim in dynamic.get(name, {}).items():
            size = node.meta["val"].shape[index]
            if isinstance(size, int):
                fail(f"dynamic: dimension {index} of {name} turned out to be {size}, whatever the example; leave it out")
            if not dim.max or dim.max > MOST:
                fail(f"dynamic: {dim.__name__} has no max; allowed: up to {MOST}")
            names[size.node.expr] = dim.__name__
    return names


def output_values(program):
    (output,) = [node for node in program.graph.nodes if node.op == "output"]
    by_name = {node.name: node for node in output.args[0]}
    return [by_name[name].meta["val"] for name in program.graph_signature.user_outputs]


def describe(program, inputs, outputs, dynamic, values):
    nodes = placeholders(program)
    names = dimension_names(nodes, inputs, dynamic)
    described = []
    for (name, tensor), node in zip(inputs.items(), nodes):
        entry = {"name": name, "datatype": datatype(name, tensor), "shape": shape_of(program, node.meta["val"], names)}
        bounds = value_range(program, name, node, tensor, values)
        if bounds is not None:
            entry["values"] = bounds
        described.append(entry)
    results = output_values(program)
    if len(results) != len(outputs):
        fail(f"outputs: {len(outputs)} names; the module has {len(results)}")
    return {
        "inputs": described,
        "outputs": [{"name": name, "datatype": datatype(name, value), "shape": shape_of(program, value, names)}
                    for name, value in zip(outputs, results)],
    }


def compile_package(path, program, metadata):
    metadata = {"version": 1, "torch": torch.__version__.split("+")[0], **metadata}
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(path), inductor_configs={"aot_inductor.metadata": {"millrace": json.dumps(metadata)}})
    return metadata


@torch.no_grad()
def export_package(path, module, inputs, outputs, dynamic=None, values=None):
    """Compiles `module` into the package `path`, which is served for Infer.

    inputs: example tensors by the names of forward()'s parameters, in their order; a dynamic dimension of an example should be at
        least 2, since a size of 1 is taken for granted.
    outputs: names of what forward() returns: a tensor, a tuple of them, or a dict, in its order.
    dynamic: by input, {dimension: torch.export.Dim(name, min=..., max=...)}. Other dimensions are the example's.
    values: by input of whole numbers, (least, most) of its elements. Not needed where the input is only looked up in an embedding.
    """
    dynamic, values = dynamic or {}, values or {}
    for name in {*dynamic, *values} - set(inputs):
        fail(f"{name} is no input; inputs are {', '.join(inputs)}")
    program = torch.export.export(module.eval(), (), dict(inputs),
                                  dynamic_shapes={name: dynamic.get(name) for name in inputs})
    return compile_package(path, program, describe(program, inputs, outputs, dynamic, values))


CAUSAL_LM = ("layers", "kv_heads", "head_size", "vocab_size", "context_length", "end_tokens")


@torch.no_grad()
def export_causal_lm(path, module, causal_lm):
    """Compiles `module`, a language model with its KV cache, into the package `path`, which is served as a GGUF file is.

    causal_lm: a dict of layers, kv_heads, head_size, vocab_size, context_length and end_tokens, a list.

    forward(tokens, positions, context, wanted, keys, values) runs `length` tokens of each of `rows` sequences. It puts their keys
    and values into the cache, in place, and returns logits, [outputs, vocab_size], float32. All indexes are int64:
      tokens, positions  [rows, length]: each row's positions are consecutive.
      context            [rows, past]: where in the cache a row's position i lies. `past` is one more than the largest position of any
                         row, or more; behind a row's last position stands a place that holds zeros.
      wanted             [outputs]: tokens whose logits are wanted, as indexes of [rows * length].
      keys, values       one tensor a layer, [places, kv_heads, head_size], float32.
    """
    if set(causal_lm) != set(CAUSAL_LM):
        fail(f"causal_lm: has {', '.join(causal_lm)}; required: {', '.join(CAUSAL_LM)}")
    rows, length, past, outputs, places = 2, 3, 8, 4, 64
    indexes = torch.zeros(rows, length, dtype=torch.int64)
    cache = [torch.zeros(places, causal_lm["kv_heads"], causal_lm["head_size"]) for _ in range(causal_lm["layers"])]
    inputs = {"tokens": indexes, "positions": indexes.clone(), "context": torch.zeros(rows, past, dtype=torch.int64),
              "wanted": torch.zeros(outputs, dtype=torch.int64), "keys": cache, "values": [layer.clone() for layer in cache]}
    sizes = {name: torch.export.Dim(name, min=1, max=MOST) for name in ("rows", "length", "past", "outputs", "places")}
    tokens = {0: sizes["rows"], 1: sizes["length"]}
    layers = [{0: sizes["places"]} for _ in cache]
    program = torch.export.export(module.eval(), (), inputs, dynamic_shapes={
        "tokens": tokens, "positions": tokens, "context": {0: sizes["rows"], 1: sizes["past"]},
        "wanted": {0: sizes["outputs"]}, "keys": layers, "values": layers})
    results = output_values(program)
    if len(results) != 1 or results[0].dtype != torch.float32 or results[0].dim() != 2 or \
            results[0].shape[1] != causal_lm["vocab_size"]:
        fail(f"forward() returns {[(str(value.dtype), list(value.shape)) for value in results]}; allowed: logits, "
             f"torch.float32, [outputs, {causal_lm['vocab_size']}]")
    return compile_package(path, program, {"causal_lm": causal_lm})


def load(path):
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    if len(sys.argv) != 3 or not sys.argv[2].endswith(".pt2"):
        fail("usage: export_package.sh MODULE.py PACKAGE.pt2")
    arguments = load(sys.argv[1]).package()
    export = export_causal_lm if "causal_lm" in arguments else export_package
    metadata = export(sys.argv[2], **arguments)
    print(json.dumps(metadata, indent=1))


if __name__ == "__main__":
    main()
