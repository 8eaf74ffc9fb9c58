"""llama.cpp, by the C functions of PyPI's xllamacpp."""
import ctypes
import glob
import os

import xllamacpp


class Parameters(ctypes.Structure):
    """llama_model_params or llama_context_params, which are passed as they are: of more bytes than they have in any version."""
    _fields_ = [("bytes", ctypes.c_char * 512)]


class Batch(ctypes.Structure):
    """llama_batch."""
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)), ("embd", ctypes.c_void_p), ("pos", ctypes.c_void_p),
                ("n_seq_id", ctypes.c_void_p), ("seq_id", ctypes.c_void_p), ("logits", ctypes.c_void_p)]


def library():
    lib = ctypes.CDLL(glob.glob(os.path.join(os.path.dirname(xllamacpp.__file__), "*.so"))[0])
    ints = ctypes.POINTER(ctypes.c_int32)
    floats = ctypes.POINTER(ctypes.c_float)
    pointer, number, text = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
    for name, result, arguments in (
            ("llama_model_default_params", Parameters, []), ("llama_context_default_params", Parameters, []),
            ("llama_model_load_from_file", pointer, [text, Parameters]), ("llama_model_free", None, [pointer]),
            ("llama_model_get_vocab", pointer, [pointer]), ("llama_vocab_is_eog", ctypes.c_bool, [pointer, number]),
            ("llama_vocab_get_attr", number, [pointer, number]),
            ("llama_tokenize", number, [pointer, text, number, ints, number, ctypes.c_bool, ctypes.c_bool]),
            ("llama_init_from_model", pointer, [pointer, Parameters]), ("llama_free", None, [pointer]),
            ("llama_set_embeddings", None, [pointer, ctypes.c_bool]), ("llama_batch_get_one", Batch, [ints, number]),
            ("llama_decode", number, [pointer, Batch]), ("llama_encode", number, [pointer, Batch]),
            ("llama_get_embeddings_seq", floats, [pointer, number])):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.llama_backend_init()
    return lib


def load(lib, path):
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp does not read {path}")
    return model
