"""Made-up driver installations: tiny shared objects compiled on the spot, laid out as installers lay them out."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_manager.adapters.driver_files.driver import multiarch

VERSION = "550.54.14"
CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")

# file name without version → SONAME; {v} is the driver's version
LIBRARIES = {
    "libcuda.so": "libcuda.so.1",
    "libnvidia-ml.so": "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so": "libnvidia-nvvm.so.4",
    "libnvidia-gpucomp.so": "libnvidia-gpucomp.so.{v}",
    "libnvidia-encode.so": "libnvidia-encode.so.1",
    "libnvcuvid.so": "libnvcuvid.so.1",
    "libGLX_nvidia.so": "libGLX_nvidia.so.0",
}
SONAMES = frozenset(name.format(v=VERSION) for name in LIBRARIES.values())


class Objects:
    """Shared objects by SONAME, compiled once a test run."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("no C compiler: driver roots are made of real shared objects")
        self._compiler = compiler
        self._directory = directory

    def make(self, soname: str, *options: str) -> Path:
        path = self._directory / ("-".join([soname or "none", *options]).replace("/", "_") + ".built")
        if not path.exists():
            flags = [f"-Wl,-soname,{soname}"] if soname else []
            subprocess.run(
                [
                    self._compiler,
                    "-shared",
                    "-nostdlib",
                    "-fPIC",
                    "-x",
                    "c",
                    "-",
                    "-o",
                    str(path),
                    *flags,
                    *options,
                ],
                input=b"int made_up = 1;\n",
                check=True,
                capture_output=True,
            )
        return path


class DriverRoot:
    """A node's file system under ``root``, with a driver in it."""

    def __init__(self, root: Path, objects: Objects) -> None:
        self.root = root
        self.objects = objects

    def place(self, path: str, soname: str) -> Path:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.objects.make(soname), target)
        return target

    def link(self, path: str, target: str) -> None:
        link = self.root / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)

    def file(self, path: str, text: str = "") -> Path:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def install(self, directory: str = "", version: str = VERSION, *, links: bool = True) -> str:
        """The driver as NVIDIA's installer leaves it: versioned files, SONAME links by ldconfig.

        Without ``links`` ldconfig never ran, and only the link that programs cannot do without is there.
        """
        directory = directory or f"/usr/lib/{multiarch()}"
        for name, template in LIBRARIES.items():
            soname = template.format(v=version)
            self.place(f"{directory}/{name}.{version}", soname)
            if soname != f"{name}.{version}" and (links or soname == "libcuda.so.1"):
                self.link(f"{directory}/{soname}", f"{name}.{version}")
        self.file("/usr/bin/nvidia-smi", "#!/bin/sh\n")
        return directory

    def upgrade(self, old: str, new: str, *, links: bool = True) -> None:
        directory = self.install(version=new, links=links)
        for name in LIBRARIES:
            (self.root / directory.lstrip("/") / f"{name}.{old}").unlink()

    def nodes(
        self, minors: range = range(8), directory: str = "/dev", control: tuple[str, ...] = CONTROL
    ) -> None:
        for name in (*(f"nvidia{minor}" for minor in minors), *control):
            self.file(f"{directory}/{name}")


def machine_is_supported() -> bool:
    return platform.machine() in ("x86_64", "aarch64")
