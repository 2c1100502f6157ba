# TorchPatterns::torch_patterns, the very library that Python loads: one process may hold one copy of the ops.
# CMAKE_PREFIX_PATH needs the folders of both packages: torch.utils.cmake_prefix_path and torch_patterns.__path__[0].
include(CMakeFindDependencyMacro)
find_dependency(Torch)

get_filename_component(_package "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(_headers "${_package}/include")
if(NOT EXISTS "${_headers}") # built in place
  get_filename_component(_headers "${_package}/../csrc" ABSOLUTE)
endif()
set(_standard cxx_std_17)
if(Torch_VERSION VERSION_GREATER_EQUAL 2.13)
  set(_standard cxx_std_20)
endif()

if(NOT TARGET TorchPatterns::torch_patterns)
  add_library(TorchPatterns::torch_patterns SHARED IMPORTED)
  set_target_properties(
    TorchPatterns::torch_patterns
    PROPERTIES IMPORTED_LOCATION "${_package}/libtorch_patterns.so"
               INTERFACE_INCLUDE_DIRECTORIES "${_headers}"
               INTERFACE_LINK_LIBRARIES "${TORCH_LIBRARIES}"
               INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed" # a program may use nothing but the registered ops
               INTERFACE_COMPILE_FEATURES "${_standard}")
endif()
