#!/usr/bin/env python3
"""Writes the corpora and dictionaries of the fuzz targets: fuzz_corpus.py FOLDER.

FOLDER/NAME gets small inputs of the target NAME_fuzz, and FOLDER/NAME.dict the words by which libFuzzer finds its way: the short string
literals of the code that the target calls. Inputs that once broke something stand in unit tests beside what they broke.
"""
import base64
import io
import json
import pathlib
import re
import struct
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The sources whose string literals make a target's dictionary.
SOURCES = {
    "formats_gguf": ["formats/gguf_model.cc", "formats/gguf/*.cc", "formats/tokenizers/gguf_*.cc", "formats/families/*.cc"],
    "formats_safetensors": ["formats/huggingface/safetensors*.cc"],
    "formats_folder": ["formats/folder_text.cc", "formats/generation_config.cc", "formats/huggingface/safetensors_folder.cc", "formats/tokenizers/tokenizer_json.cc"],
    "formats_pickle": ["formats/distributed/*.cc"],
    "formats_checkpoint": ["formats/distributed/*.cc"],
    "formats_hf_config": ["formats/huggingface/hf_*.cc", "formats/families/*.cc", "formats/model/rope_config.cc"],
    "text_template": ["text/jinja/*.cc"],
    "text_tokenizer": ["formats/tokenizers/tokenizer_*.cc", "text/tokenizer/normalizer.cc"],
    "text_vocabulary": ["formats/tokenizers/sentencepiece_model.cc", "formats/tokenizers/tekken.cc"],
    "text_grammar": ["text/grammar/*.cc"],
    "text_tools": ["text/tools/*.cc"],
    "server_guard": [],
    "server_guard_first_bytes": [],
    "server_http": ["server/http/*/*_protocol.cc", "server/http/kserve/kserve.cc", "server/http/transport/wire.cc", "server/http/api/host_policy.cc", "server/http/api/cors.cc"],
    "server_http_body": ["server/http/*/*.cc", "engine/request/request_fields.h"],
    "server_grpc": ["executors/tensor_model.cc", "server/grpc/*.cc"],
    "server_grpc_bounds": [],
}


def words(target):
    found = set()
    for pattern in SOURCES[target]:
        for path in ROOT.glob(pattern):
            if not re.search(r"_(test|bench|fuzz|test_util)\.", path.name):
                found.update(re.findall(r'"([A-Za-z0-9_.$/<>|:\-\[\]{}%#*+?=\^ ]{2,32})"', path.read_text()))
    return sorted(found)


# ---- Model files ----


def gguf_text(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(value):
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_text(value)
    kind = {str: 8, float: 6, int: 5}[type(value[0])]
    data = b"".join(gguf_value(item)[4:] for item in value)
    return struct.pack("<IIQ", 9, kind, len(value)) + data


def gguf(metadata, tensors):
    """A file of F32 tensors, {name: shape with the innermost dimension first}."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += gguf_text(key) + gguf_value(value)
    offset, sizes = 0, []
    for name, shape in tensors.items():
        size = 4
        for dimension in shape:
            size *= dimension
        out += gguf_text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
        out += struct.pack("<IQ", 0, offset)
        sizes.append(size)
        offset += (size + 31) // 32 * 32
    out += b"\0" * (-len(out) % 32)
    return out + b"\0" * offset


def decoder(architecture, **more):
    metadata = {"general.architecture": architecture}
    fields = {
        "block_count": 1, "embedding_length": 8, "feed_forward_length": 8, "attention.head_count": 2, "attention.head_count_kv": 1,
        "context_length": 64, "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 4, "rope.freq_base": 10000.0, **more
    }
    metadata.update({f"{architecture}.{key}": value for key, value in fields.items()})
    return metadata


def tokenizer(model, tokens, **more):
    return {"tokenizer.ggml.model": model, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * len(tokens),
            "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.add_bos_token": True,
            **{f"tokenizer.ggml.{key}": value for key, value in more.items()}}


def gguf_files():
    layer = {"blk.0.attn_norm.weight": [8], "blk.0.attn_q.weight": [8, 8], "blk.0.attn_k.weight": [8, 4], "blk.0.attn_v.weight": [8, 4],
             "blk.0.attn_output.weight": [8, 8], "blk.0.ffn_norm.weight": [8], "blk.0.ffn_gate.weight": [8, 8],
             "blk.0.ffn_up.weight": [8, 8], "blk.0.ffn_down.weight": [8, 8]}
    tensors = {"token_embd.weight": [8, 6], **layer, "output_norm.weight": [8]}
    gpt2 = tokenizer("gpt2", ["<s>", "</s>", "a", "b", "ab", "\u0120a"], pre="smollm", merges=["a b", "\u0120 a"])
    yield gguf({**decoder("llama"), **gpt2}, tensors)
    yield gguf({**decoder("llama"), **tokenizer("llama", ["<unk>", "</s>", "\u2581a", "a", "b", "<0x0A>"],
                                                scores=[0.0, 0.0, -1.0, -2.0, -3.0, -4.0])}, tensors)
    yield gguf({**decoder("llama", **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}), **gpt2}, tensors)
    biased = {**tensors, "blk.0.attn_q.bias": [8], "blk.0.attn_k.bias": [4], "blk.0.attn_v.bias": [4]}
    yield gguf({**decoder("qwen2"), **gpt2}, biased)
    experts = {key: value for key, value in tensors.items() if ".ffn_" not in key or "norm" in key}
    experts.update({"blk.0.ffn_gate_inp.weight": [8, 2], "blk.0.ffn_gate_exps.weight": [8, 8, 2], "blk.0.ffn_up_exps.weight": [8, 8, 2],
                    "blk.0.ffn_down_exps.weight": [8, 8, 2]})
    yield gguf({**decoder("llama", expert_count=2, expert_used_count=1), **gpt2}, experts)
    for architecture in ["gemma3", "gpt-oss", "qwen3moe", "phi3", "granite", "glm4moe", "qwen35", "qwen3next", "lfm2", "lfm2moe", "granitehybrid", "nemotron_h", "bert"]:
        yield gguf({**decoder(architecture), **gpt2}, tensors)
    yield gguf({"general.architecture": "llama", "general.alignment": 64}, {"a": [32, 2], "b": [1]})
    split = [{"split.no": i, "split.count": 2, "split.tensors.count": len(tensors)} for i in range(2)]
    yield gguf({**split[0], **decoder("llama"), **gpt2}, {"output_norm.weight": [8]}) + gguf(
        split[1], {name: shape for name, shape in tensors.items() if name != "output_norm.weight"})


def safetensors(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors_files():
    one = {"a.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}
    yield safetensors(one, b"\0" * 16)
    yield safetensors({"__metadata__": {"format": "pt"}, **one, "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]}}, b"\0" * 22)
    yield safetensors({"s": {"dtype": "F8_E4M3", "shape": [], "data_offsets": [0, 1]}}, b"\0")
    yield safetensors({"e": {"dtype": "I64", "shape": [0, 4], "data_offsets": [0, 0]}, **one}, b"\0" * 16)


class Pickled:
    """The opcodes that push values."""

    def text(text):
        return b"X" + struct.pack("<I", len(text)) + text.encode()

    def number(number):
        return b"J" + struct.pack("<i", number)

    def group(values):
        return b"(" + b"".join(values) + b"t"

    def listed(values):
        return b"](" + b"".join(values) + b"e"

    def table(**values):
        return b"}(" + b"".join(Pickled.text(key) + value for key, value in values.items()) + b"u"

    def name(module, name):
        return f"c{module}\n{name}\n".encode()

    def call(name, *arguments):
        return name + Pickled.group(arguments) + b"R"

    def made(name, state):
        return name + b")\x81" + state + b"b"

    def size(*numbers):
        return Pickled.call(Pickled.name("torch", "Size"), Pickled.group(map(Pickled.number, numbers)))

    def whole(value):
        return b"\x80\x02" + value + b"."


def saved_tensor(rows, columns):
    """What torch.save writes of floats."""
    p = Pickled
    storage = p.group([p.text("storage"), p.name("torch", "FloatStorage"), p.text("0"), p.text("cpu"), p.number(rows * columns)]) + b"Q"
    hooks = p.name("collections", "OrderedDict") + b")R"
    tensor = p.call(p.name("torch._utils", "_rebuild_tensor_v2"), storage, p.number(0), p.group([p.number(rows), p.number(columns)]),
                    p.group([p.number(columns), p.number(1)]), b"\x89", hooks)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in (("data.pkl", p.whole(tensor)), ("byteorder", b"little"), ("data/0", bytes(4 * rows * columns))):
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), content)
    return file.getvalue()


def checkpoints(parts):
    """`.metadata` and the file of a tensor [3, 4] whose rows are divided so."""
    p, module = Pickled, "torch.distributed.checkpoint.metadata"
    chunks, places, data, begin = [], b"", b"", 0
    for rows in parts:
        saved = saved_tensor(rows, 4)
        chunks.append(p.made(p.name(module, "ChunkStorageMetadata"), p.table(offsets=p.size(begin, 0), sizes=p.size(rows, 4))))
        places += p.made(p.name(module, "MetadataIndex"), p.table(fqn=p.text("w"), offset=p.size(begin, 0)))
        places += p.made(p.name("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                         p.table(relative_path=p.text("__0_0.distcp"), offset=p.number(len(data)), length=p.number(len(saved))))
        data += saved
        begin += rows
    properties = p.made(p.name(module, "TensorProperties"), p.group([p.name("torch", "float32"), b"N", b"\x89"]))
    tensor = p.made(p.name(module, "TensorStorageMetadata"), p.table(properties=properties, size=p.size(3, 4), chunks=p.listed(chunks)))
    metadata = p.made(p.name(module, "Metadata"), p.table(state_dict_metadata=p.table(w=tensor), planner_data=b"N", storage_data=b"}(" + places + b"u"))
    return p.whole(metadata), data


def pickles():
    yield b"\0" + checkpoints([1, 2])[0]
    yield b"\0" + checkpoints([3])[0]
    yield b"\1" + saved_tensor(3, 4)


def checkpoint_folders():
    for parts in ([3], [1, 2], [1, 1, 1]):
        metadata, data = checkpoints(parts)
        yield struct.pack("<H", len(metadata)) + metadata + data
    metadata, _ = checkpoints([3])
    yield struct.pack("<H", len(metadata)) + metadata + safetensors({"w": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}, b"\0" * 1000)


def twins():
    """The configs of the families' own tests: JSON lists in raw strings."""
    base = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "torch_dtype": "float32", "tie_word_embeddings": False, "eos_token_id": [1, 2], "head_dim": 16}
    yield base
    for path in sorted((ROOT / "formats/families").glob("*.cc")):
        for text in re.findall(r'kTwins = R"\((.*?)\)";', path.read_text(), re.S):
            for twin in json.loads(text):
                yield {**base, **twin.get("changes", {})}
    for quantization in [
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]},
            {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
            {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
            {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"], "config_groups": {"group_0": {
                "targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False},
                "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}}}}]:
        yield {**base, "quantization_config": quantization}


def folders():
    added = {"content": "</s>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    configs = {"added_tokens_decoder": {"2": {**added, "content": "<s>"}, "3": added}, "bos_token": "<s>", "eos_token": added, "unk_token": None,
               "chat_template": [{"name": "default", "template": "{{ messages }}"}, {"name": "tool_use", "template": "x"}], "tokenizer_class": "LlamaTokenizer"}
    index = {"metadata": {"total_size": 8}, "weight_map": {"model.norm.weight": "model-1.safetensors"}}
    generation = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1, 2], "do_sample": True, "repetition_penalty": 1.1, "max_new_tokens": 5}
    files = [json.dumps(one) for one in (configs, {"bos_token": "<s>", "eos_token": added}, generation, {"chat_template": "{{ messages }}"}, index)]
    files.append("{{ bos_token }}")
    yield "\0".join(files).encode()
    for one in range(len(files)):
        yield "\0".join(text if index == one else "" for index, text in enumerate(files)).encode()


def tokenizers():
    letters = {letter: index for index, letter in enumerate("abcdefgh\u0120")}
    bpe = {"version": "1.0", "added_tokens": [
        {"id": 20, "content": "<s>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}],
           "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
           "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                     "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": {**letters, "ab": 10, "abc": 11},
                     "merges": ["a b", "ab c"]}}
    yield bpe
    yield {**bpe, "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+"}, "behavior": "Isolated", "invert": False},
        {"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
           "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                              "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [20], "tokens": ["<s>"]}}}}
    byte_tokens = {f"<0x{byte:02X}>": byte + 3 for byte in range(256)}
    yield {**bpe, "added_tokens": [], "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}, "pre_tokenizer": None,
           "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                                                         {"type": "ByteFallback"}, {"type": "Fuse"},
                                                         {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
           "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                     "vocab": {"<unk>": 0, "<s>": 1, "</s>": 2, **byte_tokens, "\u2581": 259, "a": 260, "\u2581a": 261}, "merges": [["\u2581", "a"]]}}
    yield {**bpe, "added_tokens": [], "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                                                     "strip_accents": None, "lowercase": True},
           "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
           "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                     "vocab": {"[UNK]": 0, "hello": 1, "##lo": 2, "he": 3, ",": 4, "world": 5}}}
    yield {**bpe, "added_tokens": [], "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
           "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
           "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": False, "vocab": [["<unk>", 0.0], ["\u2581", -2.0], ["a", -3.0], ["\u2581a", -2.5]]}}
    yield {**bpe, "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "Hello": 1}}}


def wire(number, value):
    """A field in protobuf's wire format: an int is a varint, a float fixed32."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def sentencepiece_models():
    normal, unknown, control, user, byte = 1, 2, 3, 4, 6
    words = [("\u2581", -1.0), ("a", -2.0), ("b", -3.0), ("\u2581a", -1.5), ("ab", -2.5), ("\u4f60", -4.0)]

    def model(pieces, trainer, normalizer):
        fields = b"".join(wire(1, wire(1, text.encode()) + wire(2, score) + wire(3, kind)) for text, score, kind in pieces)
        fields += wire(2, b"".join(wire(*field) for field in trainer.items()))
        return fields + wire(3, b"".join(wire(*field) for field in normalizer.items()))

    specials = [("<unk>", 0.0, unknown), ("<s>", 0.0, control), ("</s>", 0.0, control)]
    pieces = specials + [(text, score, normal) for text, score in words]
    yield model(pieces, {3: 1}, {1: b"identity", 3: 1, 4: 1, 5: 1})
    yield model(pieces + [("[x]", 0.0, user)], {3: 2, 40: 0, 41: 1, 42: 2, 43: -1}, {3: 1, 4: 0, 5: 1})
    in_bytes = specials + [(f"<0x{i:02X}>", 0.0, byte) for i in range(256)] + pieces[3:]
    yield model(in_bytes, {3: 2, 35: 1}, {3: 0, 4: 0, 5: 1})
    yield model(pieces, {3: 1, 24: 1}, {2: struct.pack("<I", 4) + bytes(4) + b"a\0", 3: 1, 4: 1, 5: 0}) + wire(5, wire(1, b"identity"))


def tekkens():
    def vocabulary(more):
        tokens = [bytes([i]) for i in range(256)] + more
        return [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for rank, token in enumerate(tokens)]

    config = {"pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+", "num_vocab_tokens": 258, "default_vocab_size": 278,
              "default_num_special_tokens": 20, "version": "v3"}
    old = {"config": config, "vocab": vocabulary([b"He", b"llo"])}
    yield old
    names = ["<unk>", "<s>", "</s>", "[INST]"]
    yield {"config": {**config, "default_vocab_size": 266, "default_num_special_tokens": 8, "version": "v13"}, "vocab": old["vocab"],
           "special_tokens": [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)]}


def vocabularies():
    yield from (b"\0a ab <s>\0" + model for model in sentencepiece_models())
    yield from (b"\1Hello <s> 12\0" + json.dumps(tekken, separators=(",", ":")).encode() for tekken in tekkens())


def templates():
    text = (ROOT / "tests/reference/template_snippets.txt").read_text()
    blocks = [line.replace("\u23ce", "\n") for line in text.splitlines() if "{" in line]  # The sign stands for a line feed.
    yield from blocks[:150]
    yield ("{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + (m.content or '') + '<|im_end|>' }}{% endfor %}"
           "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}")
    yield "{% macro f(x, y=1) %}{{ x ~ y }}{% endmacro %}{% set ns = namespace(n=0) %}{% for k, v in {'a': 1}.items() %}{% set ns.n = ns.n + v %}{{ f(k) }}{% endfor %}{{ ns.n }}"
    yield "{%- for t in tools %}{{ t | tojson(indent=2) }}{% if not loop.last %}, {% endif %}{% else %}none{% endfor -%}{{ [1,2,3][::-1] | join('-') | upper }}{{ 'a,b'.split(',') | length }}"
    yield "{{ raise_exception('no') if messages | selectattr('role', 'equalto', 'x') | list else strftime_now('%d %B %Y') }}"


# ---- Requests ----


def grammars():
    schemas = [
        {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 120}, "b": {"type": "string", "pattern": "^[a-z]{2,4}$"}},
         "required": ["a"], "additionalProperties": False},
        {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1, "maxItems": 3, "uniqueItems": False,
         "$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}}},
        {"enum": [1, "a", None, {"b": [True, -2.5]}]}, {"const": "x"}, {"allOf": [{"type": "number"}, {"multipleOf": 5}]},
        {"oneOf": [{"type": "string", "format": "date-time"}, {"type": "string", "format": "uuid"}]},
        {"type": "string", "minLength": 2, "maxLength": 5}, {"not": {"type": "string"}}, {"prefixItems": [{"type": "boolean"}], "items": False},
        {"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 2}, {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": {"type": "null"}},
        {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}}, {"dependentRequired": {"a": ["b"]}}, {}, True,
    ]
    kinds = [  # The first byte modulo 5: a schema, a regular expression, a grammar, texts to choose from, texts that may not occur.
        [json.dumps(schema) for schema in schemas],
        ["[a-z]+(@|\\.)\\w{1,3}", "(a|b)*?c{2,}[^\\x00-\\x1f]", "^\\d{3}-\\p{L}+$", "(?:x(?=y)|\\u00e9)", "((a{0,9}){0,9}){0,9}"],
        ['root ::= "a" b*\nb ::= [0-9]+ | "(" root ")"', 'start: WORD ("," WORD)*\nWORD: /[a-z]+/ | "\\n"', 'root ::= ("x"){2,4} [^a\\n] # c\n',
         'root ::= root "a" | "b"'],
        ["yes\nno\nmaybe", "a\nab\nabc"], ["</s>\n<tool", "ab"],
    ]
    for kind, texts in enumerate(kinds):
        for text in texts:
            yield bytes([ord("2") + kind]) + text.encode()  # ord("2") is a multiple of 5.
    yield from (bytes([ord("2") + 5]) + json.dumps(schema).encode() for schema in schemas[:4])


def answers():
    texts = [
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call> more', '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}',
        '<|python_tag|>{"name": "f", "parameters": {"s": "\\u00e9}"}}', '[TOOL_CALLS][{"name": "f", "arguments": {"a": [1, {"b": 2}]}}]',
        "[TOOL_CALLS]f[ARGS]{\"a\": 1}", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        "<|constrain|>json<|message|>{\"a\": 1}<|call|>", "<think>\nSo.\n</think>\n\nYes <tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        "<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>f\n```json\n{\"a\": 1}\n```"
        "<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>", '<|tool_call|>[{"name": "f", "arguments": {}}]',
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", "Plain text.", "<response>Hi</response>", "[THINK]a[/THINK]b",
    ]
    for format in range(48):
        yield bytes([format, format % 2, format % 3]) + texts[format % len(texts)].encode()
    for index, text in enumerate(texts):
        yield bytes([index, 0, 1]) + text.encode()
    literals = [
        "I look.<|tool_call_start|>[f(a=1, s='it\\'s', o={'k': [True, None, (2,)]}), g()]<|tool_call_end|>", "[f(a=-1, s=\"\"\"x\"\"\" r'y')]",
        "<function_calls>\nf(a=0x1F)\ng(1_000)\n</function_calls>", '<|tool_call>call:f{s:<|"|>x, y<|"|>,o:{k:[true,1.5]},e:bare}<tool_call|>',
        "<start_function_call>call:f{s:<escape>x<escape>}<end_function_call>", 'all\nI look.>>>f\n{"a": 1}>>>g\n{}',
        '<use_mcp_tool>\n<server_name>s</server_name>\n<tool_name>f</tool_name>\n<arguments>\n{"a": 1}\n</arguments>\n</use_mcp_tool>',
    ]
    for text in literals:
        for format in range(26, 34):  # the parsers of these forms, as OutputFormat::ToolParsers has them
            yield bytes([format, 0, 1]) + text.encode()


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def frames():
    block = b"\x83\x86\x44\x05/a.b/\x41\x04host\x5f\x10application/grpc\x40\x02te\x08trailers"
    prefix = b"\0\0\0\0\3abc"
    yield b"\0" + frame(1, 4, 1, block) + frame(0, 1, 1, prefix)
    yield b"\0" + frame(4, 0, 0, struct.pack(">HIHI", 4, 1000, 5, 20000)) + frame(8, 0, 0, struct.pack(">I", 9)) + frame(6, 0, 0, b"12345678")
    yield b"\0" + frame(1, 0, 1, block[:9]) + frame(9, 4, 1, block[9:]) + frame(3, 0, 1, struct.pack(">I", 8)) + frame(2, 0, 3, b"\0\0\0\1\5")
    yield b"\0" + frame(1, 0x2c, 1, b"\2\0\0\0\0\7" + block + b"\0\0") + frame(0, 8, 1, b"\3" + prefix + b"\0\0\0") + frame(0, 0, 1, prefix * 3)
    yield b"\0" + frame(4, 1, 0) + frame(7, 0, 0, b"\0\0\0\1\0\0\0\0bye") + frame(0x42, 0, 0, b"x") + frame(0, 0, 7)
    yield b"\1" + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(1, 5, 1, block)
    yield b"\1GET / HTTP/1.1\r\n"
    for coded in [block, b"\x3f\x61\x82\xbe", b"\x40\x82\xf1\xe3\x83\x1c\x64\xff", b"\x3f\xe1\xff\xff\xff\x0f"]:
        yield b"\2" + bytes([len(coded)]) + coded + bytes([255, 8, 3]) + b"\x82\xbe\xbf"


def beginnings():
    def sized(length, data):
        return len(data).to_bytes(length, "big") + data

    def hello(*protocols):
        alpn = sized(2, sized(2, b"".join(sized(1, protocol) for protocol in protocols)))
        body = b"\3\3" + bytes(32) + sized(1, b"s") + sized(2, b"\x13\x01") + sized(1, b"\0") + sized(2, b"\0\x17\0\0\0\x10" + alpn)
        return b"\1" + sized(3, body)

    proxy = b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + sized(2, bytes([1, 2, 3, 4, 5, 6, 7, 8, 0, 80, 0, 81]))
    whole = hello(b"h2")
    for first in [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n", b"\x16\3\1" + sized(2, whole), b"\x16\3\1" + sized(2, hello(b"h2", b"http/1.1")),
                  b"\x16\3\1" + sized(2, whole[:9]) + b"\x16\3\1" + sized(2, whole[9:])]:
        yield first
        yield proxy + first


def bodies():
    tool = {"type": "function", "function": {"name": "f", "description": "d", "strict": True, "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    text = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}
    return {
        0: [{"prompt": "p", "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}, "logprobs": 2, "echo": True, "n": 2, "best_of": 3},
            {"model": "m", "prompt": [[1, 2], [3]], "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 7, "stop": ["a", "b"], "logit_bias": {"5": -1.5}},
            {"prompt": ["p", [1]], "echo": True, "logprobs": 1, "n": 2, "stream": True},
            {"prompt": ["a", "b"], "guided_regex": "a+", "repetition_penalty": 1.1, "ignore_eos": True, "priority": -1, "stop_token_ids": [1], "timeout_ms": 5}],
        1: [{"messages": [{"role": "system", "content": "s"}, text, call, {"role": "tool", "tool_call_id": "c", "content": "1"}], "tools": [tool], "tool_choice": "required",
             "parallel_tool_calls": False, "logprobs": True, "top_logprobs": 3},
            {"messages": [text], "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}},
             "tool_choice": {"type": "function", "function": {"name": "f"}}, "chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
            {"messages": [text], "max_completion_tokens": 3, "stop": "x", "add_generation_prompt": False, "continue_final_message": True, "structured_outputs": {"choice": ["a"]}}],
        2: [{"input": "Hi", "instructions": "i", "max_output_tokens": 9, "store": False, "tools": [{"type": "function", **tool["function"]}], "text": {"format": {"type": "text"}}},
            {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "t"}]}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                       {"type": "function_call_output", "call_id": "c", "output": "1"}], "previous_response_id": "resp_1", "reasoning": {"effort": "high"}, "stream": True,
             "metadata": {"a": "b"}}],
        3: [{"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}]}],
             "system": [{"type": "text", "text": "s"}], "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"},
             "stop_sequences": ["x"], "thinking": {"type": "enabled", "budget_tokens": 1024}}],
        4: [{"model": "m", "messages": [{"role": "user", "content": "a"}]}],
        5: [{"input": ["a", "b"], "encoding_format": "base64", "dimensions": 8, "truncate_prompt_tokens": -1}, {"input": [[1, 2]], "user": "u"}],
        6: [{"prompt": "a", "add_special_tokens": False, "return_token_strs": True}, {"messages": [text], "add_generation_prompt": True}],
        7: [{"tokens": [1, 2, 3], "model": "m"}],
    }


def http_requests():
    def request(first, body=b"", *headers):
        lines = [first, "Host: localhost", *headers]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    paths = {0: "/v1/completions", 1: "/v1/chat/completions", 2: "/v1/responses", 3: "/v1/messages", 4: "/v1/messages/count_tokens",
             5: "/v1/embeddings", 6: "/tokenize", 7: "/detokenize"}
    for route, path in paths.items():
        yield request(f"POST {path} HTTP/1.1", json.dumps(bodies()[route][0]).encode(), "Authorization: Bearer k")
    for path in ["/", "/v1/models", "/health", "/livez", "/metrics", "/version", "/v1/responses/resp_1", "/console", "/nothing?x=1"]:
        yield request(f"GET {path} HTTP/1.1", b"", "Accept: */*")
    yield request("OPTIONS /v1/models HTTP/1.1", b"", "Origin: https://a.example", "Access-Control-Request-Method: POST",
                  "Access-Control-Request-Headers: authorization", "Access-Control-Request-Private-Network: true")
    yield request("POST http://localhost/tokenize HTTP/1.1", b"", "Transfer-Encoding: chunked", "Content-Type: application/json", "X-Request-Id: a",
                  "X-Request-Timeout-Ms: 100") + b'e;x=y\r\n{"prompt":"a"}\r\n0\r\nT: v\r\n\r\n'
    yield request("DELETE /v1/responses/resp_1 HTTP/1.0", b"", "Expect: 100-continue", "Connection: close", "x-api-key: k")


def messages(types=("GenerateRequest", "TokenizeRequest", "EmbedRequest", "InferRequest")):
    """Yields requests behind a byte that says which of the types it is."""
    texts = {
        "GenerateRequest": ['model: "m" text: "p" sampling { temperature: 0.5 top_k: 3 seed: 9 logit_bias { token: 3 bias: -1 } } stopping { max_tokens: 4 stop: "a" } n: 2',
                            'chat { messages { role: "user" content: "c" name: "n" } } logprobs: 3 echo: true priority: -5 request_id: "r" timeout_ms: 9',
                            'token_ids { ids: 1 ids: 2 } structured_output { json_schema: "{}" } skip_special_tokens: false',
                            'text: "p" structured_output { choice { choices: "a" choices: "b" } }'],
        "TokenizeRequest": ['text: "a" add_special_tokens: false return_token_strs: true', 'chat { messages { role: "user" content: "c" } }'],
        "EmbedRequest": ['inputs { text: "a" } inputs { token_ids { ids: 4 } } truncate_prompt_tokens: -1 priority: 2 timeout_ms: 8'],
        "InferRequest": ['model_name: "m" inputs { name: "x" datatype: "FP32" shape: 2 contents { fp32_contents: 1 fp32_contents: 2 } } outputs { name: "y" }',
                         'inputs { name: "x" datatype: "INT8" shape: 1 contents { int_contents: -128 } }',
                         'inputs { name: "x" datatype: "BF16" shape: 1 } raw_input_contents: "ab"'],
    }
    for message, cases in texts.items():
        for case in cases:
            coded = subprocess.run(["protoc", f"--proto_path={ROOT}/proto", f"--encode=millrace.v1.{message}", "millrace/v1/inference.proto"],
                                   input=case.encode(), stdout=subprocess.PIPE, check=True).stdout
            yield bytes([types.index(message)]) + coded


CORPORA = {
    "formats_gguf": gguf_files, "formats_safetensors": safetensors_files,
    "formats_folder": folders,
    "formats_pickle": pickles, "formats_checkpoint": checkpoint_folders,
    "formats_hf_config": lambda: (json.dumps(config).encode() for config in twins()),
    "text_template": lambda: (text.encode() + b"\0Hello" for text in templates()),
    "text_tokenizer": lambda: (json.dumps(value, ensure_ascii=False).encode() + b"\0Hello abc abcabc  12" for value in tokenizers()),
    "text_vocabulary": vocabularies,
    "text_grammar": grammars, "text_tools": answers, "server_guard": frames, "server_guard_first_bytes": beginnings, "server_http": http_requests,
    "server_http_body": lambda: (bytes([route]) + json.dumps(body).encode() for route, all_of in bodies().items() for body in all_of),
    "server_grpc": messages,
    "server_grpc_bounds": lambda: messages(("GenerateRequest", "EmbedRequest", "TokenizeRequest", "DetokenizeRequest", "InferRequest")),
}


def main():
    folder = pathlib.Path(sys.argv[1])
    for target, make in CORPORA.items():
        (folder / target).mkdir(parents=True, exist_ok=True)
        for index, data in enumerate(make()):
            (folder / target / f"seed-{index:03}").write_bytes(data)
        lines = ['"' + word.replace("\\", "\\\\") + '"\n' for word in words(target)]
        (folder / f"{target}.dict").write_text("".join(lines))


main()
