"""Builds torch_patterns/libtorch_patterns.so, which registers every op and knows no Python, and its bindings, _C.

What is constant stands in pyproject.toml. USE_CUDA=0 leaves CUDA out, MAX_JOBS and TORCH_CUDA_ARCH_LIST mean what they
mean to torch.utils.cpp_extension. csrc/CMakeLists.txt builds the same library from the same files for C++ programs.
"""

import os
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.errors import CompileError

try:
    import torch
    from torch.utils import cpp_extension
except ImportError as missing:
    raise SystemExit(f"Building takes an installed torch: pip install --no-build-isolation . ({missing})") from missing

ROOT = Path(__file__).parent.resolve()
os.chdir(ROOT)
# The ninja of this interpreter, also where its environment is not active. Another one would build everything again.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

CSRC = Path("csrc")
BINDINGS = CSRC / "torch/python.cpp"
LIBRARY = "torch_patterns.libtorch_patterns"
PRECOMPILED = Path("build/precompiled/torch.h")  # torch's headers: half the time of each file of csrc/torch
GLUE = '#pragma GCC optimize("O1")'  # for calls of what others compiled, and for the templates of those headers


def find_nvcc() -> bool:
    home = cpp_extension.CUDA_HOME
    return home is not None and Path(home, "bin", "nvcc").exists()


WITH_CUDA = os.environ.get("USE_CUDA", "1") != "0" and torch.version.cuda is not None and find_nvcc()


def library_sources() -> list[str]:
    """Every .cpp and .cu of csrc but the bindings. Without CUDA a .cu is C++: a .cpp includes it."""
    sources = set()
    for path in (*CSRC.rglob("*.cpp"), *CSRC.rglob("*.cu")):
        if path.suffix == ".cu" and not WITH_CUDA:  # a simulation: -Og takes a third of -O3's time to compile it
            path = generated(path, '#pragma GCC optimize("Og")')
        elif path.parent == CSRC / "torch":
            path = generated(path, f'#include "{ROOT / PRECOMPILED}"', GLUE)
        sources.add(path)
    return sorted(map(str, sources - {generated_path(BINDINGS)}))


def generated_path(path: Path) -> Path:
    return Path("build/cpp", path.relative_to(CSRC).with_suffix(path.suffix.removesuffix(".cpp") + ".cpp"))


def generated(path: Path, *lines: str) -> Path:
    """A source with some lines before it."""
    return write(generated_path(path), *lines, f'#include "{ROOT / path}"')


def write(path: Path, *lines: str) -> Path:
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:  # ninja looks at its age
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path


def extension(name: str, sources: list[str], **options):
    """No -std: each torch asks for its own. -g0: Python's own flags ask for debug information, which takes time."""
    kind = cpp_extension.CUDAExtension if WITH_CUDA else cpp_extension.CppExtension
    # torch takes the half operators away from nvcc; csrc means the same with and without torch.
    half_operators = [f"-U__CUDA_NO_{what}__" for what in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS")]
    half_operators.append("-U__CUDA_NO_BFLOAT16_CONVERSIONS__")
    return kind(
        name,
        sources,
        include_dirs=[str(ROOT / CSRC)],
        define_macros=[("TP_WITH_CUDA", None), ("TP_CUDA_VERSION", f'"{torch.version.cuda}"')] if WITH_CUDA else [],
        extra_compile_args={
            # at::parallel_for is serial without -fopenmp; the runtime is the one torch loads. torch's headers silence
            # what they compare for themselves, but not once they are precompiled.
            "cxx": ["-O3", "-g0", "-fopenmp", "-Wno-sign-compare"],
            "nvcc": ["-O3", "--expt-relaxed-constexpr", "-lineinfo", *half_operators],
        },
        **options,
    )


class Build(cpp_extension.BuildExtension):
    """The library under its plain name, then the bindings linked to it."""

    def finalize_options(self):
        super().finalize_options()
        self.force = True  # what to compile is for ninja to say, which knows the headers

    def get_ext_filename(self, fullname):
        if fullname.endswith(LIBRARY.split(".")[-1]):
            return str(Path(*fullname.split(".")).with_suffix(".so"))
        return super().get_ext_filename(fullname)

    def build_extension(self, ext):
        if ext.name != LIBRARY:
            ext.library_dirs.append(str(Path(self.get_ext_fullpath(LIBRARY)).parent))
        shared, self.build_temp = self.build_temp, str(Path(self.build_temp, ext.name))  # one build.ninja each
        try:
            if ext.name == LIBRARY:
                self.precompile(ext)
            super().build_extension(ext)
        except RuntimeError as failed:  # the compiler has said what is wrong: no traceback
            raise CompileError(f"{ext.name}: {failed}") from failed
        finally:
            self.build_temp = shared

    def precompile(self, ext):
        """torch.h.gch, which GCC takes for torch.h if it was made with the same flags: hence as one of the sources."""
        write(PRECOMPILED, GLUE, *(f"#include <{header}>" for header in ("torch/autograd.h", "torch/library.h")))
        self.compiler.src_extensions.append(".h")
        (header,) = self.compiler.compile(
            [str(PRECOMPILED)],
            output_dir=str(PRECOMPILED.parent),
            macros=ext.define_macros,
            include_dirs=ext.include_dirs,
            extra_postargs=ext.extra_compile_args,
        )
        target = PRECOMPILED.with_suffix(".h.gch")
        if not target.exists() or not target.samefile(header):
            target.unlink(missing_ok=True)
            target.hardlink_to(header)


# The C++ runtime that torch uses. A static one would be a second copy in the process, and the two do not share their
# locales: a message that holds a number would crash.
RUNTIME = "-l:libstdc++.so.6"

library = extension(LIBRARY, library_sources(), extra_link_args=["-Wl,-soname,libtorch_patterns.so", RUNTIME])
library.libraries.remove("torch_python")
bindings = extension(
    "torch_patterns._C",
    [str(BINDINGS)],
    libraries=["torch_patterns"],
    extra_link_args=["-Wl,-rpath,$ORIGIN", RUNTIME],
)

setup(
    packages=[*find_packages(include=["torch_patterns", "torch_patterns.*"]), "torch_patterns.include"],
    package_dir={"torch_patterns.include": "csrc"},
    package_data={
        "torch_patterns": ["py.typed", "share/cmake/TorchPatterns/*.cmake"],
        "torch_patterns.include": ["**/*.h", "**/*.cuh", "**/*.inc", "**/*.def"],
    },
    ext_modules=[library, bindings],
    cmdclass={"build_ext": Build},
)
