"""The build of the Debian package: environment, systemd's files, manual pages, dpkg's own files."""

from __future__ import annotations

import compileall
import gzip
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
INSTALL = ROOT / "install"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
HOME = Path("usr/lib/bruce")
SITE = HOME / "lib" / PYTHON / "site-packages"
CONFIGURATION = Path("etc/bruce/bruce.toml")
FILES = {
    "systemd/bruce.service": "usr/lib/systemd/system/bruce.service",
    "systemd/bruce.socket": "usr/lib/systemd/system/bruce.socket",
    "systemd/sysusers.conf": "usr/lib/sysusers.d/bruce.conf",
    "systemd/tmpfiles.conf": "usr/lib/tmpfiles.d/bruce.conf",
    "systemd/sysctl.conf": "usr/lib/sysctl.d/60-bruce.conf",
    "bruce.toml": str(CONFIGURATION),
}
"""By path under install/, the path on the target."""
_UNWANTED = re.compile(r"(^|/)(tests|testing/_private)/")
"""Parts of libraries that only their own tests need."""
_SCRIPT = """\
#!/{home}/bin/python
import sys

from cli.start import {name}

sys.exit({name}())
"""
_CONTROL = """\
Package: bruce
Version: {version}
Architecture: {architecture}
Maintainer: the maintainers of bruce <maintainers@users.noreply.a-seed-54d86d95.example>
Installed-Size: {kib}
Depends: {python}, libc6 (>= 2.28), init-system-helpers (>= 1.54), systemd-sysusers | systemd | adduser
Section: net
Priority: optional
Description: {summary}
 Programs write datagrams to a UNIX socket and are done. bruce has them on disk before they could be lost,
 and delivers them to Kafka when Kafka is there.
"""


class Unbuilt(Exception):
    """The package cannot be built."""


def release() -> str:
    """The version in pyproject.toml."""
    return str(_project()["version"])


def _project() -> dict[str, str]:
    project: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def build(to: Path, version: str) -> Path:
    """Write the package into a folder; its path. Raises Unbuilt."""
    if not shutil.which("dpkg-deb"):
        raise Unbuilt("there is no dpkg-deb: Debian packages are built on Debian and its like")
    architecture = _run("dpkg", "--print-architecture").strip()
    to.mkdir(parents=True, exist_ok=True)
    package = to / f"bruce_{version}_{architecture}.deb"
    with tempfile.TemporaryDirectory(prefix="bruce-deb-", dir=to) as folder:
        stage = Path(folder)
        stage.chmod(0o755)
        _install_environment(stage)
        _install_bruce(stage)
        for source, target in FILES.items():
            (stage / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(INSTALL / source, stage / target)
            (stage / target).chmod(0o644)
        _install_documents(stage)
        _write_control(stage, version, architecture)
        # zstd at its usual level: xz takes minutes to save 2 %, since most of the package is one library.
        _run("dpkg-deb", "--root-owner-group", "-Zzstd", "-z3", "--build", stage, package)
    return package


def _install_environment(stage: Path) -> None:
    """A virtual environment like venv's, on the target's Python, with the libraries that bruce needs."""
    (stage / HOME / "bin").mkdir(parents=True)
    (stage / HOME / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON.removeprefix('python')}\n",
        encoding="utf-8",
    )
    (stage / HOME / "bin/python").symlink_to(f"/usr/bin/{PYTHON}")
    for found in libraries():
        for file in found.files or ():
            source = Path(str(found.locate_file(file)))
            if ".." in file.parts or _UNWANTED.search(str(file)) or not source.is_file():
                continue
            target = stage / SITE / file
            target.parent.mkdir(parents=True, exist_ok=True)
            # With its time, by which Python matches the compiled file beside it.
            shutil.copy2(source, target)


def libraries() -> Iterator[metadata.Distribution]:
    """The installed libraries that bruce needs at run time, and those that they need. Raises Unbuilt."""
    wanted, seen = [Requirement(text) for text in _project()["dependencies"]], set()
    while wanted:
        requirement = wanted.pop()
        if requirement.name in seen or (
            requirement.marker and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        seen.add(requirement.name)
        try:
            found = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            raise Unbuilt(f"{requirement.name} is not installed: run tools/test once") from None
        if not requirement.specifier.contains(found.version):
            raise Unbuilt(f"{requirement} is wanted, and {found.version} installed: run tools/test once")
        wanted += [Requirement(text) for text in found.requires or ()]
        yield found


def _install_bruce(stage: Path) -> None:
    """Install the files of our wheel at Debian's paths."""
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(stage), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(stage / SITE)
    Path(wheel).unlink()
    (data,) = (stage / SITE).glob("bruce_spool-*.data")
    shutil.copytree(data / "data/share", stage / "usr/share", dirs_exist_ok=True)
    shutil.rmtree(data)
    compileall.compile_dir(stage / SITE, quiet=2, stripdir=str(stage), prependdir="/")
    (stage / "usr/bin").mkdir()
    for name in ("bruce", "brucectl"):
        script = stage / HOME / "bin" / name
        script.write_text(_SCRIPT.format(home=HOME, name=name), encoding="utf-8")
        script.chmod(0o755)
        (stage / "usr/bin" / name).symlink_to(f"../lib/bruce/bin/{name}")


def _install_documents(stage: Path) -> None:
    """Manual pages, compressed like Debian's; licence and changes."""
    for page in (stage / "usr/share/man").glob("*/*"):
        _compress(page, page.with_name(f"{page.name}.gz"))
        page.unlink()
    documents = stage / "usr/share/doc/bruce"
    documents.mkdir(parents=True)
    _compress(ROOT / "CHANGELOG.md", documents / "changelog.gz")
    shutil.copy(ROOT / "LICENSE", documents / "copyright")
    (documents / "copyright").chmod(0o644)


def _compress(source: Path, target: Path) -> None:
    """Without a time, so that the same page is the same file."""
    target.write_bytes(gzip.compress(source.read_bytes(), 9, mtime=0))
    target.chmod(0o644)


def _write_control(stage: Path, version: str, architecture: str) -> None:
    files = sorted(path for path in stage.rglob("*") if path.is_file() and not path.is_symlink())
    control = stage / "DEBIAN"
    control.mkdir()
    (control / "control").write_text(
        _CONTROL.format(
            version=version,
            architecture=architecture,
            kib=sum(path.stat().st_size for path in files) >> 10,
            python=PYTHON,
            summary="a durable way into Kafka",
        ),
        encoding="utf-8",
    )
    (control / "conffiles").write_text(f"/{CONFIGURATION}\n", encoding="utf-8")
    (control / "md5sums").write_text(
        "".join(f"{_md5(path)}  {path.relative_to(stage)}\n" for path in files), encoding="utf-8"
    )
    for script in (INSTALL / "debian").iterdir():
        shutil.copy(script, control / script.name)
        (control / script.name).chmod(0o755)


def _md5(path: Path) -> str:
    """The digest that dpkg --verify compares."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _run(*command: object) -> str:
    """The output of a program. Raises Unbuilt, with its error output."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unbuilt(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout
