# SPDX-License-Identifier: Apache-2.0
# The torch of the Python that runs this build, also from inside pip's isolated environment, where it cannot be
# imported: it lies where that Python installs packages.
set(CDGRAB_BUILD_TORCH ON)
find_package(Python REQUIRED COMPONENTS Interpreter)
execute_process(COMMAND ${Python_EXECUTABLE} -c
                        "import sysconfig; print(sysconfig.get_path('purelib') + ';' + sysconfig.get_path('platlib'))"
                OUTPUT_VARIABLE packages OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
foreach(folder ${packages})
  list(APPEND CMAKE_PREFIX_PATH ${folder}/torch/share/cmake)
endforeach()
find_package(Torch QUIET)
if(NOT Torch_FOUND)
  message(FATAL_ERROR "cdgrab: no torch in ${packages}; install it first, pip install torch==2.13.0, and if it is "
                      "installed elsewhere, build with the Python that imports it: pip install --no-build-isolation .")
endif()
