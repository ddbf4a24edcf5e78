"""Files that are almost right: bytes that changed, and values that no program would write."""

import copy
import io
import json
import random
import struct
import zipfile
from typing import Any

import numpy as np
import safetensors.numpy

from surestep.storage.arrays import pack_arrays

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 1e308, -1e308, 5e-324, 0.0, -0.0,
    float("nan"), float("inf"), float("-inf"), "inf", "nan", "-inf", "", "\0", "../../etc/passwd",
    "<script>alert(1)</script>", "\ud800", "a" * 5000, [], {}, [[]], [None], {"": None},
    {"class": "os.system", "fields": {}},
    {"array": "rule/0", "dtype": "float64", "shape": [10**12]}, {"float": "1"},
    {"number": "O", "value": 1}, {"dict": [[[], 1]]}, {"tuple": "ab"}, {"list": 3},
    {"function": "os.system"}, {"numpy": True},
]  # fmt: skip
WORDS = [b"\0", b"\xff" * 8, b"{", b"}", b"[" * 2000, b'"', b",", b"NaN", b"1e999", b"-", b"\n",
         b"PK\3\4", b"\x93NUMPY", b"null", b"9" * 5000, struct.pack("<Q", 2**40)]  # fmt: skip
FORMS = [
    "<f8",
    "|O",
    "|S5",
    "<U2",
    ">f4",
    "<c16",
    "<M8[s]",
    "|V8",
    "f8,i4",
    "<i8",
    "?",
    "x",
    "<f99",
]


def mutate(kind: str, seeds: list[bytes], chance: random.Random) -> bytes:
    """Another file like one of the seeds."""
    seed = chance.choice(seeds)
    if kind == "json" and chance.random() < 0.7:
        return _json(json.loads(seed), chance)
    if kind == "arrays" and chance.random() < 0.5:
        return _arrays(seed, chance)
    if kind == "npz" and chance.random() < 0.5:
        return _npz(seed, chance)
    return _bytes(seed, seeds, chance)


def _bytes(seed: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    content = bytearray(seed)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        place = chance.randrange(len(content) + 1)
        end = min(len(content), place + chance.choice((1, 2, 8, 64)))
        match chance.randrange(7):
            case 0 if place < len(content):
                content[place] ^= 1 << chance.randrange(8)
            case 1:
                content[place:end] = chance.randbytes(end - place)
            case 2:
                del content[place:end]
            case 3:
                content[place:place] = chance.choice(WORDS)
            case 4:
                del content[place:]
            case 5:
                content[place:place] = content[place:end] * chance.choice((1, 3, 50))
            case _:
                other = chance.choice(seeds)
                cut = chance.randrange(len(other) + 1)
                content[place:] = other[cut:]
    return bytes(content)


def _place(value: Any, chance: random.Random) -> list[Any]:
    """The way to a random place inside."""
    way: list[Any] = []
    while isinstance(value, dict | list) and value and (not way or chance.random() < 0.7):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        way.append(chance.choice(keys))
        value = value[way[-1]]
    return way


def changed(value: Any, chance: random.Random) -> Any:
    """The value, which is used up, with a few of its places changed."""
    if chance.random() < 0.01:
        return chance.choice(ODD)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        way = _place(value, chance)
        if not way:
            return value
        holder, last = _at(value, way[:-1]), way[-1]
        match chance.randrange(6):
            case 0:
                del holder[last]
            case 1 if isinstance(holder, dict):
                holder[chance.choice(("extra", "", "array", "class", str(last)))] = holder.pop(last)
            case 2 if isinstance(holder, list):
                holder.extend((holder * chance.choice((1, 30)))[:100])
            case 3:
                holder[last] = copy.deepcopy(_at(value, _place(value, chance)))
            case 4:
                holder[last] = _Deep(chance.choice((3, 300, 3000)), chance.choice("[{"))
                return value
            case _:
                holder[last] = copy.deepcopy(chance.choice(ODD))
    return value


def _at(value: Any, place: list[Any]) -> Any:
    for key in place:
        value = value[key]
    return value


class _Deep:
    """Something so deep that Python could not write it."""

    def __init__(self, depth: int, mark: str) -> None:
        pair = {"[": ("[", "]"), "{": ('{"a":', "}")}[mark]
        self.text = pair[0] * depth + "1" + pair[1] * depth


def _text(value: Any) -> str:
    deep: list[str] = []

    def note(found: Any) -> str:
        deep.append(found.text)
        return f"@deep{len(deep) - 1}@"

    text = json.dumps(value, default=note)
    for number, inner in enumerate(deep):
        text = text.replace(f'"@deep{number}@"', inner)
    return text


def _json(value: Any, chance: random.Random) -> bytes:
    return _text(changed(value, chance)).encode()


def _arrays(seed: bytes, chance: random.Random) -> bytes:
    """Other arrays and metadata, with a checksum that fits them: past the first door."""
    length = struct.unpack("<Q", seed[:8])[0]
    header = json.loads(seed[8 : 8 + length])
    metadata = json.loads(header["__metadata__"]["surestep"])
    metadata.pop("sha256", None)
    arrays = safetensors.numpy.load(seed)
    if chance.random() < 0.7 and "facts" in metadata:
        metadata["facts"] = _text(changed(json.loads(metadata["facts"]), chance))
    elif chance.random() < 0.3 and metadata:
        name = chance.choice(sorted(metadata))
        metadata[name] = chance.choice(("", "[]", "{}", "null", "7", "x"))
    else:
        name = chance.choice(sorted(arrays))
        arrays |= {chance.choice((name, name, "extra")): _array(arrays[name], chance)}
    return pack_arrays(arrays, metadata)


def _array(array: np.ndarray, chance: random.Random) -> np.ndarray:
    match chance.randrange(5):
        case 0:
            return array.reshape(1, -1) if chance.random() < 0.5 else array.reshape(-1)
        case 1:
            return np.concatenate([np.atleast_1d(array)] * 3)
        case 2:
            kind = chance.choice((np.float32, np.int8, np.uint64, np.bool_, np.float16))
            with np.errstate(all="ignore"):
                return array.astype(kind)
        case 3:
            return np.full(array.shape, chance.choice((np.nan, np.inf, -1e308, 0.0)))
        case _:
            return np.zeros((0, *array.shape[1:]), array.dtype)


def _npz(seed: bytes, chance: random.Random) -> bytes:
    """An archive whose headers announce what they like."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(seed)) as old, zipfile.ZipFile(buffer, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            if chance.random() < 0.6:
                content = _header(chance) + content[128 : chance.choice((128, 200, None))]
            name = chance.choice((info.filename,) * 8 + ("../../x.npy", "x", "", "target.npy"))
            method = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
            new.writestr(zipfile.ZipInfo(name), content, method)
    content = buffer.getvalue()
    return _bytes(content, [content], chance) if chance.random() < 0.3 else content


def _header(chance: random.Random) -> bytes:
    lengths = [0, 1, 3, -1, 10**6, 10**12, 10**30]
    shape = tuple(chance.choice(lengths) for _ in range(chance.randrange(4)))
    form = chance.choice(FORMS)
    text = f"{{'descr': {form!r}, 'fortran_order': False, 'shape': {shape}, }}"
    if chance.random() < 0.2:
        text = text.replace("'", chance.choice(("", '"', "(" * 50)), 1)
    version = chance.choice((b"\1\0", b"\2\0", b"\3\0", b"\0\1"))
    size = "<H" if version == b"\1\0" else "<I"
    padded = text.ljust(117) + "\n"
    return b"\x93NUMPY" + version + struct.pack(size, len(padded)) + padded.encode()
