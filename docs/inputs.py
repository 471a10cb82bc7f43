"""Makes the files that the sessions of the guide use, in the current directory. Needs numpy."""

import pathlib
import shutil

import numpy


def write_safetensors(name, header, elements, size_bytes):
    header = header.encode()
    header += b" " * (-len(header) % 8)
    with open(name, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + elements)
        file.truncate(8 + len(header) + size_bytes)


numpy.save("points.npy", numpy.array([[1, 4], [2, 1], [3, 5]], "float32"))
numpy.save("more.npy", numpy.array([[6, 2], [7, 0]], "float32"))
numpy.save("matrix.npy", numpy.ones((1000, 1000), "float32"))
model = """{"encoder.bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
"encoder.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]}}"""
elements = numpy.array([0.5, 0.25, 1, 2, 3, 4, 5, 6], "float32").tobytes()
write_safetensors("model.safetensors", model, elements, len(elements))
names = sorted((f"layers.{n // 12}.experts.{n % 12}.up", n) for n in range(24))
header = ",".join(
    f'"{name}":{{"dtype":"F32","shape":[2,3],"data_offsets":[{24 * i},{24 * i + 24}]}}'
    for i, (name, _) in enumerate(names)
)
elements = numpy.repeat(numpy.array([number for _, number in names], "float32"), 6).tobytes()
write_safetensors("experts.safetensors", "{" + header + "}", elements, len(elements))
big = '{"rows":{"dtype":"F32","shape":[1048576,1024],"data_offsets":[0,4294967296]}}'
write_safetensors("big.safetensors", big, b"", 1 << 32)
repository = pathlib.Path(__file__).resolve().parent.parent
shutil.copy(repository / "interop/tests/data/pt/nested_zip.pt", "checkpoint.pt")
