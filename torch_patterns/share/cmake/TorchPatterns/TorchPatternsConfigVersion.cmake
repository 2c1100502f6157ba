# The version of the Python package, which alone says it. Before 1.0 each minor version may differ from the last.
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../../../version.py" PACKAGE_VERSION REGEX "__version__")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" PACKAGE_VERSION "${PACKAGE_VERSION}")

string(REGEX MATCH "^[0-9]+\\.[0-9]+" _minor "${PACKAGE_VERSION}")
string(REGEX MATCH "^[0-9]+(\\.[0-9]+)?" _wanted "${PACKAGE_FIND_VERSION}")
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_LESS_EQUAL PACKAGE_VERSION AND (_wanted VERSION_EQUAL _minor OR "${_wanted}" STREQUAL ""))
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
else()
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
endif()
