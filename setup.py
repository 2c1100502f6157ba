"""Builds torch_patterns/libtorch_patterns.so, which registers every op and knows no Python, and its bindings, _C.

What is constant stands in pyproject.toml. USE_CUDA=0 leaves CUDA out, LINEINFO=1 tells profilers the lines of kernels
(six times the size), MAX_JOBS and TORCH_CUDA_ARCH_LIST mean what they mean to torch.utils.cpp_extension.
csrc/CMakeLists.txt builds the same library from the same files for C++ programs.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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
BINDINGS = sorted(CSRC.glob("torch/python*.cpp"))
LIBRARY = "torch_patterns.libtorch_patterns"
# For each group of C++ files: the optimization, and the headers to precompile, which saves half the time of most files.
GROUPS = {
    "kernels": ("-O3", "core/simt.h", "algorithm"),
    "simulations": ("-O1", "core/simt.h", "algorithm"),  # .cu files without CUDA; they compile in half of -O3's time
    # csrc/torch, which calls code of the other groups. No more headers than most files include: each file that uses
    # precompiled headers instantiates again what the inline functions in them need.
    "glue": ("-O2", "ATen/ATen.h", "torch/library.h"),
}
HIDDEN = "-fvisibility=hidden"  # but for what TP_EXPORT marks
# Files named *_sm90a.cu use instructions that exist only on this target.
SM90A = "-gencode=arch=compute_90a,code=sm_90a"


def find_nvcc() -> bool:
    home = cpp_extension.CUDA_HOME
    return home is not None and Path(home, "bin", "nvcc").exists()


# Without this, GCC does not tell ninja which headers a file has from a precompiled one.
IS_GCC = cpp_extension.check_compiler_is_gcc(cpp_extension.get_cxx_compiler())
PRECOMPILED_DEPENDENCIES = ["-fpch-deps"] if IS_GCC else []
WITH_CUDA = os.environ.get("USE_CUDA", "1") != "0" and torch.version.cuda is not None and find_nvcc()


def size_flags() -> list[str]:
    """What keeps device code small: compressed, with line information on request only."""
    if not WITH_CUDA:
        return []
    nvcc = Path(cpp_extension.CUDA_HOME, "bin", "nvcc")
    release = re.search(r"release (\d+)\.(\d+)", subprocess.check_output([nvcc, "--version"], text=True))
    compress = "--compress-mode=size" if tuple(map(int, release.groups())) >= (12, 8) else "-Xfatbin=-compress-all"
    return [compress, *(["-lineinfo"] if os.environ.get("LINEINFO", "0") != "0" else [])]


def library_sources() -> dict[str, list[str]]:
    """Lists the .cpp and .cu files of csrc except the bindings, by group. Without CUDA, a generated .cpp includes each
    .cu.

    A .cu that names TP_PARTS is compiled once for each part, as TP_PART, so that its instantiations compile in
    parallel.
    """
    sources = {group: [] for group in (*GROUPS, "sm90a")}
    for path in sorted({*CSRC.rglob("*.cpp"), *CSRC.rglob("*.cu")} - {*BINDINGS}):
        if path.suffix == ".cu" and not WITH_CUDA:
            simulation = Path("build/cpp", path.relative_to(CSRC).with_suffix(".cu.cpp"))
            sources["simulations"].append(str(write(simulation, f'#include "{ROOT / path}"')))
        elif path.stem.endswith("_sm90a"):
            sources["sm90a"].append(str(path))
        elif parts := re.search("^// TP_PARTS: (.*)$", path.read_text(), re.M):
            for part in parts[1].split():
                source = Path("build/cu", path.relative_to(CSRC).with_suffix(f".{part}.cu"))
                sources["kernels"].append(str(write(source, f"#define TP_PART {part}", f'#include "{ROOT / path}"')))
        else:
            sources["glue" if path.parent == CSRC / "torch" else "kernels"].append(str(path))
    return sources


def write(path: Path, *lines: str) -> Path:
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:  # keeps its age, by which ninja decides
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path


def extension(name: str, sources: list[str], **options):
    """Makes an extension. Each torch adds its own -std. -g0 overrides Python's flags: debug information takes time."""
    kind = cpp_extension.CUDAExtension if WITH_CUDA else cpp_extension.CppExtension
    # torch disables nvcc's half operators; csrc must mean the same with and without torch.
    half_operators = [f"-U__CUDA_NO_{what}__" for what in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS")]
    half_operators.append("-U__CUDA_NO_BFLOAT16_CONVERSIONS__")
    return kind(
        name,
        sources,
        include_dirs=[str(ROOT / CSRC)],
        define_macros=[("TP_WITH_CUDA", None), ("TP_CUDA_VERSION", f'"{torch.version.cuda}"')] if WITH_CUDA else [],
        extra_compile_args={
            # at::parallel_for is serial without -fopenmp; the OpenMP runtime is the one that torch loads. Headers lose
            # their own diagnostic pragmas when they are precompiled, so two warnings of torch's headers are disabled
            # here.
            "cxx": ["-O1", "-g0", HIDDEN, "-fopenmp", "-Wno-sign-compare", "-Wno-psabi"],
            # The host code of a .cu file launches and simulates kernels: it need not be fast, but there is much of it.
            "nvcc": ["--expt-relaxed-constexpr", f"-Xcompiler=-Os,{HIDDEN}", *size_flags(), *half_operators],
        },
        **options,
    )


class Build(cpp_extension.BuildExtension):
    """Builds the library under its plain name, the bindings linked to it, and a file with the version of torch."""

    def run(self):
        super().run()
        Path(self.get_ext_fullpath(LIBRARY)).with_name("built_with").write_text(f"{torch.__version__}\n")

    def finalize_options(self):
        super().finalize_options()
        self.force = True  # ninja, which knows the headers, decides what to compile

    def get_ext_filename(self, fullname):
        if fullname.endswith(LIBRARY.split(".")[-1]):
            return str(Path(*fullname.split(".")).with_suffix(".so"))
        return super().get_ext_filename(fullname)

    def build_extension(self, ext):
        shared = self.build_temp
        try:
            if ext is library:
                self.compile_groups()
            else:
                ext.library_dirs.append(str(Path(self.get_ext_fullpath(LIBRARY)).parent))
            self.build_temp = str(Path(shared, ext.name))  # each has its own build.ninja
            super().build_extension(ext)
        except RuntimeError as failed:  # the compiler has printed the error, so no traceback is needed
            raise CompileError(f"{ext.name}: {failed}") from failed
        finally:
            self.build_temp = shared

    def compile_groups(self):
        """Compiles all groups except the kernels. While one core precompiles torch's headers, others compile the
        rest."""
        self.compiler.src_extensions.append(".h")
        with ThreadPoolExecutor() as pool:
            pool.submit(self.compile, bindings, bindings.sources, bindings.name)  # an error will show below
            flags = {group: pool.submit(self.precompile, group) for group in GROUPS if sources[group]}
            for group in ("simulations", "glue"):
                if sources[group]:
                    library.extra_objects += self.compile(library, sources[group], group, flags[group].result())
        if sources["sm90a"]:  # regardless of TORCH_CUDA_ARCH_LIST, because other devices do not load these kernels
            library.extra_objects += self.compile(library, sources["sm90a"], "sm90a", nvcc=[SM90A])
        library.extra_compile_args["cxx"] += flags["kernels"].result()

    def precompile(self, group):
        """Precompiles a group's headers and returns its flags. GCC uses NAME.h.gch for NAME.h if the other flags are
        the same."""
        optimization, *headers = GROUPS[group]
        header = write(Path("build/precompiled", f"{group}.h"), *(f"#include <{name}>" for name in headers))
        (made,) = self.compile(library, [str(header)], f"{group}.h", [optimization])
        target = header.with_suffix(".h.gch")
        if not target.exists() or not target.samefile(made):
            target.unlink(missing_ok=True)
            target.hardlink_to(made)
        return [optimization, "-include", str(ROOT / header), *PRECOMPILED_DEPENDENCIES]

    def compile(self, ext, sources, folder, flags=(), nvcc=()):
        given = ext.extra_compile_args
        return self.compiler.compile(
            sources,
            output_dir=str(Path(self.build_temp, folder)),
            macros=ext.define_macros,
            include_dirs=ext.include_dirs,
            debug=self.debug,
            extra_postargs={"cxx": [*given["cxx"], *flags], "nvcc": [*given["nvcc"], *nvcc]},
        )


# Links the C++ runtime that torch uses. A static one would be a second copy in the process with separate locales, and a
# message with a number in it would crash.
RUNTIME = "-l:libstdc++.so.6"

sources = library_sources()
library = extension(
    LIBRARY,
    sources["kernels"],
    extra_link_args=["-Wl,-soname,libtorch_patterns.so,--gc-sections", "-s", RUNTIME],
)
library.libraries.remove("torch_python")
bindings = extension(
    "torch_patterns._C",
    list(map(str, BINDINGS)),
    libraries=["torch_patterns"],
    extra_link_args=["-Wl,-rpath,$ORIGIN", RUNTIME],
)
bindings.extra_compile_args["cxx"].append("-O2")  # every call passes through the bindings

setup(
    packages=[*find_packages(include=["torch_patterns", "torch_patterns.*"]), "torch_patterns.include"],
    package_dir={"torch_patterns.include": "csrc"},
    package_data={
        "torch_patterns": ["py.typed", "share/cmake/TorchPatterns/*.cmake"],
        "torch_patterns.sparse": ["*.pyi"],
        "torch_patterns.include": ["**/*.h", "**/*.cuh", "**/*.inc", "**/*.def"],
    },
    ext_modules=[library, bindings],
    cmdclass={"build_ext": Build},
)
