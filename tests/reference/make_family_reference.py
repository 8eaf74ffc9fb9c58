#!/usr/bin/env python3
"""Makes family_reference.json, encoder_reference.json and prompt_lengths_reference.json: transformers' results for a tiny twin of
every model family.

`make parity` runs it:

    make_family_reference.py WRITE_TINY_FOLDERS FOLDER

The first is the program of that name.

The file holds the prompt's token ids, and for each twin its largest logit and its results for the prompt in float64 (transformers
computes rotations in float32): the log-probabilities of the prompt's tokens but the first, then those of the whole vocabulary behind
each position of "rows", the last among them. They are "logprobs", and "half_kv_logprobs" of keys and values rounded to float16.
Of encoders, with the prompt's first tokens, it is the "embedding" and the "half_kv_embedding", pooled and
normalized as the folder's modules.json says, and "half_kv_flips": how far the latter is from what transformers itself makes in float32,
which rounds some keys and values to the next float16, as a share of the largest number; of several prompts the most. Of cross-encoders the one number is the logit, and tokens from "second_type" on have the
second type. Of decoders with recurrent layers there are results for prompts of several lengths, each with a greedy answer behind it:
its tokens, and the log-probabilities of all but the first.
"""
import contextlib
import inspect
import json
import pathlib
import subprocess
import sys
import tempfile
import textwrap

import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

PROMPT = [(i * 37 + i * i) % 128 for i in range(49)]
ROWS = [16, 48]  # after whole blocks
ENCODED = 37  # not a multiple of a block
OTHERS = [[(i * a + i * i * b) % 128 for i in range(ENCODED)] for a, b in ((37, 1), (5, 3), (11, 7), (29, 1), (3, 5), (41, 9), (17, 2), (7, 11))]
LENGTHS = [1, 5, 63, 64, 65, 130, 300]  # of the prompts of models with recurrent layers
ANSWER = 8  # tokens that are generated behind each
SECOND = 20  # where the second text of a pair begins, for models with types of tokens


def logprobs(model):
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0]
    scores = logits.log_softmax(-1)
    wanted = [scores[i, token] for i, token in enumerate(PROMPT[1:])] + [score for row in ROWS for score in scores[row]]
    return round(logits.abs().max().item(), 4), [round(score.item(), 6) for score in wanted]


def load(kind, folder, dtype=torch.float64, **options):
    # Eager is the plain definition, the only one that supports soft caps, and of experts the only one in float64.
    model, loading = kind.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True, **options)
    wrong = {kind: names for kind, names in loading.items() if names}
    if wrong:
        raise SystemExit(f"{folder.name}: {wrong}")
    return model.eval()


@contextlib.contextmanager
def half_kv(model):
    module = sys.modules[type(model).__module__]
    if not hasattr(module, "eager_attention_forward"):  # MPNet's linears of keys and values lead nowhere else
        hooks = [linear.register_forward_hook(lambda _, inputs, out: out.half().to(out.dtype))
                 for layer in model.modules() if type(layer).__name__ == "MPNetSelfAttention" for linear in (layer.k, layer.v)]
        yield
        for hook in hooks:
            hook.remove()
        return
    # Every attention layer of the family looks this function up at each call.
    exact_attention = module.eager_attention_forward
    module.eager_attention_forward = lambda layer, q, k, v, *rest, **named: exact_attention(
        layer, q, k.half().to(k.dtype), v.half().to(v.dtype), *rest, **named)
    yield
    module.eager_attention_forward = exact_attention


def decoder_reference(folder):
    model = load(AutoModelForCausalLM, folder)
    with double_states(model) if is_recurrent(model) else contextlib.nullcontext():
        largest, exact = logprobs(model)
        with half_kv(model):
            _, rounded = logprobs(model)
    return {"largest": largest, "logprobs": exact, "half_kv_logprobs": rounded}


@contextlib.contextmanager
def double_states(model):
    # Gated delta rules and Mamba-2 compute their states in float32 whatever the model's type; short convolutions do not.
    module = sys.modules[type(model).__module__]
    single = {name: vars(module)[name] for name in ("torch_chunk_gated_delta_rule", "mamba2_chunk_scan") if hasattr(module, name)}
    for name, function in single.items():
        source = textwrap.dedent(inspect.getsource(function))
        source = source[source.index("def "):].replace("torch.float32", "torch.float64").replace(".float()", ".double()")
        scope = dict(vars(module))
        exec(source, scope)  # noqa: S102: transformers' own code
        setattr(module, name, scope[name])
    yield
    for name, function in single.items():
        setattr(module, name, function)


def is_recurrent(model):
    return "linear_attention" in (getattr(model.config, "layer_types", None) or [])


def lengths_reference(folder):
    model = load(AutoModelForCausalLM, folder)
    largest, prompts = 0.0, []
    with double_states(model), torch.no_grad():
        for length in LENGTHS:
            tokens = [(i * 37 + i * i + length) % 128 for i in range(length)]
            for _ in range(ANSWER):
                tokens.append(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax().item())
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
            largest = max(largest, logits.abs().max().item())
            scores = logits.log_softmax(-1)
            prompts.append({"length": length, "answer": ANSWER, "tokens": tokens,
                            "logprobs": [round(scores[i, token].item(), 6) for i, token in enumerate(tokens[1:])]})
    return {"largest": round(largest, 4), "prompts": prompts}


def embedding(model, folder, prompt=None):
    with torch.no_grad():
        states = model(torch.tensor([prompt or PROMPT[:ENCODED]])).last_hidden_state[0]
    pooling = json.loads((folder / "1_Pooling/config.json").read_text())
    pooled = states.mean(0) if pooling["pooling_mode_mean_tokens"] else states[-1] if pooling["pooling_mode_lasttoken"] else states[0]
    modules = json.loads((folder / "modules.json").read_text())
    if modules[-1]["type"].endswith(".Normalize"):
        pooled = torch.nn.functional.normalize(pooled, dim=0)
    return [round(value, 7) for value in pooled.tolist()]


# The names of the fields of nomic's authors in transformers' config.
AUTHORS = {"n_embd": "hidden_size", "n_inner": "intermediate_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
           "n_positions": "max_position_embeddings", "layer_norm_epsilon": "layer_norm_eps"}


def name_as_transformers(folder):
    """Writes the config of a folder as nomic's authors have it by transformers' names. It knows the tensors' names itself."""
    config = json.loads((folder / "config.json").read_text())
    if "n_embd" not in config:
        return
    config |= {name: config[field] for field, name in AUTHORS.items()}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": float(config["rotary_emb_base"])}
    (folder / "config.json").write_text(json.dumps(config))


def encoder_reference(folder):
    name_as_transformers(folder)
    pools = json.loads((folder / "config.json").read_text())["model_type"] in ("bert", "roberta", "camembert", "mpnet")
    options = {"add_pooling_layer": False} if pools else {}
    model = load(AutoModel, folder, **options)
    exact = embedding(model, folder)
    with half_kv(model):
        rounded = embedding(model, folder)
    made = {"embedding": exact, "half_kv_embedding": rounded}
    if model.config.model_type == "qwen3":
        return made
    return made | {"half_kv_flips": float(f"{flips(folder, options, model):.1g}")}


def flips(folder, options, exact):
    """Returns how far transformers' results in float32 are from those in float64, keys and values being rounded in both."""
    single = load(AutoModel, folder, torch.float32, **options)
    with half_kv(exact), half_kv(single):
        both = [[torch.tensor(embedding(model, folder, prompt)) for model in (exact, single)] for prompt in OTHERS]
    return max(((a - b).abs().max() / a.abs().max()).item() for a, b in both)


def classifier_reference(folder):
    model = load(AutoModelForSequenceClassification, folder)
    has_types = getattr(model.config, "type_vocab_size", 0) > 1
    second = SECOND if has_types else ENCODED
    types = {"token_type_ids": torch.tensor([[0] * second + [1] * (ENCODED - second)])} if has_types else {}

    def logit():
        with torch.no_grad():
            return [round(model(torch.tensor([PROMPT[:ENCODED]]), **types).logits.item(), 7)]

    exact = logit()
    with half_kv(model):
        rounded = logit()
    return {"second_type": second, "embedding": exact, "half_kv_embedding": rounded}


def write(path, twins, **shared):
    head = [f'{json.dumps(name)}: {json.dumps(values)},\n' for name, values in shared.items()]
    lines = [f'{json.dumps(twin)}: {json.dumps(values, separators=(",", ":"))}' for twin, values in twins.items()]
    path.write_text("{" + "".join(head) + '"twins": {\n' + ",\n".join(lines) + "\n}}\n")


def main():
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.argv[1], work, "families"], check=True)
        folders = sorted(pathlib.Path(work).iterdir())
        encoders = [folder for folder in folders if (folder / "modules.json").exists()]
        classifiers = [folder for folder in folders if "ForSequenceClassification" in (folder / "config.json").read_text()]
        made = pathlib.Path(sys.argv[2])
        references = {folder.name: encoder_reference(folder) for folder in encoders}
        references |= {folder.name: classifier_reference(folder) for folder in classifiers}
        write(made / "encoder_reference.json", references, prompt=PROMPT[:ENCODED])
        decoders = [folder for folder in folders if folder not in encoders + classifiers]
        write(made / "family_reference.json", {folder.name: decoder_reference(folder) for folder in decoders},
              prompt=PROMPT, rows=ROWS)
        recurrent = [folder for folder in decoders
                     if any(field in (folder / "config.json").read_text() for field in ("linear_num_key_heads", "conv_L_cache", "mamba_d_state", "ssm_state_size"))]
        write(made / "prompt_lengths_reference.json", {folder.name: lengths_reference(folder) for folder in recurrent})


if __name__ == "__main__":
    main()
