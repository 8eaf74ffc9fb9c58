"""Writes linears of four bits as GPTQ and AWQ checkpoints hold them, element by element."""
import random
import struct

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble i of a word holds column AWQ_ORDER[i] of its eight


def half(value):
    return struct.unpack("<e", struct.pack("<e", value))[0]


def words(rows, columns, nibbles, less=0):
    """Packs nibbles[(row, column, place)], place 0 being the lowest, into int32 words [rows, columns], each less that number."""
    packed = [0] * (rows * columns)
    for (row, column, place), value in nibbles.items():
        packed[row * columns + column] |= value << (4 * place)
    return "I32", (rows, columns), struct.pack(f"<{len(packed)}I", *((word - less) % 2**32 for word in packed))


def quantize(weight, group_of, groups, symmetric):
    """Returns codes [n][k], scales and zeros [n][g], the nearest of 16 steps of each group."""
    codes, scales, zeros = [], [], []
    for row in weight:
        members = [[w for w, g in zip(row, group_of) if g == group] for group in range(groups)]
        low, high = ([min(0, *m) for m in members], [max(0, *m) for m in members])
        scale = [half(max(-a / 8, b / 7) if symmetric else (b - a) / 15) for a, b in zip(low, high)]
        zero = [8 if symmetric else min(15, max(0, round(-a / s))) for a, s in zip(low, scale)]
        codes.append([min(15, max(0, round(w / scale[g]) + zero[g])) for w, g in zip(row, group_of)])
        scales.append(scale)
        zeros.append(zero)
    return codes, scales, zeros


def pack(method, weight, group, symmetric=False, seed=None):
    """Quantizes `weight`, [out][in]. Returns the tensors (dtype, shape, bytes) by the names behind the module's, and
    the weight that they stand for. With a seed, the groups of GPTQ are made of any inputs (desc_act)."""
    outs, ins = len(weight), len(weight[0])
    groups = ins // group
    group_of = [k // group for k in range(ins)]
    if seed is not None:
        random.Random(seed).shuffle(group_of)
    codes, scales, zeros = quantize(weight, group_of, groups, symmetric)
    n_k = [(n, k) for n in range(outs) for k in range(ins)]
    n_g = [(n, g) for n in range(outs) for g in range(groups)]
    flat = [scales[n][g] for g in range(groups) for n in range(outs)]
    tensors = {"scales": ("F16", (groups, outs), struct.pack(f"<{len(flat)}e", *flat))}
    if method == "gptq":  # version 1: zeros are stored less one, by GPTQModel a word at once
        tensors["qweight"] = words(ins // 8, outs, {(k // 8, n, k % 8): codes[n][k] for n, k in n_k})
        tensors["qzeros"] = words(groups, outs // 8, {(g, n // 8, n % 8): zeros[n][g] for n, g in n_g}, less=0x11111111)
        tensors["g_idx"] = ("I32", (ins,), struct.pack(f"<{ins}i", *group_of))
    else:
        place = {n: AWQ_ORDER.index(n % 8) for n in range(outs)}
        tensors["qweight"] = words(ins, outs // 8, {(k, n // 8, place[n]): codes[n][k] for n, k in n_k})
        tensors["qzeros"] = words(groups, outs // 8, {(g, n // 8, place[n]): zeros[n][g] for n, g in n_g})
    dequantized = [[scales[n][g] * (codes[n][k] - zeros[n][g]) for k, g in enumerate(group_of)] for n in range(outs)]
    return tensors, dequantized
