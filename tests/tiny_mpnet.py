"""Writes a tiny random MPNet as sentence-transformers' version 5.4 and later write it, for tests of embeddings.

Behind the pooling there are a Dense layer and a normalization, a default prompt stands before every text, and the tokenizer says how
long a text may be. Its words are few; the others are spelled by letters.
"""
import array
import json
import pathlib
import random
import struct

CONFIG = {"architectures": ["MPNetModel"], "model_type": "mpnet", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
          "num_attention_heads": 4, "vocab_size": 96, "max_position_embeddings": 258, "relative_attention_num_buckets": 32,
          "layer_norm_eps": 1e-5, "hidden_act": "gelu", "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "torch_dtype": "float32"}
LONGEST = 200  # tokens
PROMPT = "find: "
SIZE = 48  # of an embedding, behind the Dense layer


def vocabulary():
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>", "find", ":", ".", ",", "?", "the", "river", "mill", "stone", *letters]
    words += [f"##{letter}" for letter in letters]
    return {word: i for i, word in enumerate(words)}


def tokenizer():
    ids = vocabulary()
    special = [{"id": ids[text], "content": text, "special": True, "single_word": False, "lstrip": text == "<mask>", "rstrip": False,
                "normalized": False} for text in ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
            "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", ids["</s>"]], "cls": ["<s>", ids["<s>"]],
                               "trim_offsets": True, "add_prefix_space": False},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                      "vocab": ids}}


def shapes():
    """Names and shapes of the model's tensors."""
    hidden, ffn = CONFIG["hidden_size"], CONFIG["intermediate_size"]

    def norm(name):
        yield f"{name}.LayerNorm.weight", [hidden]
        yield f"{name}.LayerNorm.bias", [hidden]

    yield "embeddings.word_embeddings.weight", [CONFIG["vocab_size"], hidden]
    yield "embeddings.position_embeddings.weight", [CONFIG["max_position_embeddings"], hidden]
    yield from norm("embeddings")
    yield "encoder.relative_attention_bias.weight", [CONFIG["relative_attention_num_buckets"], CONFIG["num_attention_heads"]]
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"encoder.layer.{i}."
        for name, out, size in (("attention.attn.q", hidden, hidden), ("attention.attn.k", hidden, hidden), ("attention.attn.v", hidden, hidden),
                                ("attention.attn.o", hidden, hidden), ("intermediate.dense", ffn, hidden), ("output.dense", hidden, ffn)):
            yield f"{layer}{name}.weight", [out, size]
            yield f"{layer}{name}.bias", [out]
        yield from norm(f"{layer}attention")
        yield from norm(f"{layer}output")


def write_tensors(path, tensors, seed, spread=0.3):
    draw = random.Random(seed)
    header, data = {}, bytearray()
    for name, shape in tensors:
        count = 1
        for size in shape:
            count *= size
        centre = 1 if name.endswith("LayerNorm.weight") else 0
        values = array.array("f", (centre + draw.uniform(-spread, spread) for _ in range(count))).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write(folder):
    """Writes the folder and returns it."""
    folder = pathlib.Path(folder)
    for name in ("1_Pooling", "2_Dense", "3_Normalize"):
        (folder / name).mkdir(parents=True, exist_ok=True)

    def put(name, value):
        (folder / name).write_text(json.dumps(value))

    put("config.json", CONFIG)
    put("tokenizer.json", tokenizer())
    put("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LONGEST, "unk_token": "[UNK]",
                                  "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"})
    base = "sentence_transformers.base.modules."
    put("modules.json", [
        {"idx": 0, "name": "0", "path": "", "type": f"{base}transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": f"{base}dense.Dense"},
        {"idx": 3, "name": "3", "path": "3_Normalize", "type": f"{base}normalize.Normalize"}])
    put("sentence_bert_config.json", {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings",
                                      "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}})
    put("config_sentence_transformers.json", {"model_type": "SentenceTransformer", "default_prompt_name": "query",
                                              "prompts": {"query": PROMPT, "document": ""}, "similarity_fn_name": "cosine"})
    put("1_Pooling/config.json", {"embedding_dimension": CONFIG["hidden_size"], "pooling_mode": "mean", "include_prompt": True})
    sentence = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
    put("2_Dense/config.json", {"in_features": CONFIG["hidden_size"], "out_features": SIZE, "bias": True,
                                "activation_function": "torch.nn.modules.activation.Tanh", **sentence})
    put("3_Normalize/config.json", sentence)
    write_tensors(folder / "model.safetensors", shapes(), seed=5)
    write_tensors(folder / "2_Dense/model.safetensors", [("linear.weight", [SIZE, CONFIG["hidden_size"]]), ("linear.bias", [SIZE])], seed=6,
                  spread=0.1)
    return folder
