# SPDX-License-Identifier: Apache-2.0
# Builds the consumer and runs it.
#   cmake -D MODE=package|subdirectory|shared -D SOURCE=.. -D BUILD=.. -D WORK=.. -P run.cmake
# package: SOURCE's finished build tree BUILD, installed. subdirectory: SOURCE as part of the consumer.
# shared: SOURCE built anew as a shared library, installed. WORK is kept, so that a second run is quick.
cmake_minimum_required(VERSION 3.25)
set(prefix ${WORK}/prefix)
file(REMOVE_RECURSE ${prefix} ${WORK}/consumer/CMakeCache.txt)
# Compiled as the release build is, so that ccache has it all.
set(common -G Ninja -DCMAKE_BUILD_TYPE=Release -DCDGRAB_WERROR=ON)
find_program(ccache ccache)
if(ccache)
  list(APPEND common -DCMAKE_CXX_COMPILER_LAUNCHER=${ccache})
endif()
# The core needs none of these, and must not pick one up where it is there.
foreach(package Torch MPI Python Python3 PythonInterp PythonLibs pybind11)
  list(APPEND common -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

if(MODE STREQUAL "package")
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
elseif(MODE STREQUAL "shared")
  run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/library ${common} -DBUILD_SHARED_LIBS=ON -DCDGRAB_BUILD_CLI=OFF
      -DCDGRAB_BUILD_TESTS=OFF -DCDGRAB_BUILD_BENCH=OFF -DCDGRAB_BUILD_EXAMPLES=OFF)
  run(${CMAKE_COMMAND} --build ${WORK}/library --parallel 2)
  run(${CMAKE_COMMAND} --install ${WORK}/library --prefix ${prefix})
endif()

if(MODE STREQUAL "subdirectory")
  set(where -DCDGRAB_SOURCE=${SOURCE})
else()
  # What the library uses inside is no business of the consumer's.
  set(where -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON
            -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON)
endif()
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK}/consumer ${common} ${where})
if(NOT MODE STREQUAL "subdirectory")
  load_cache(${WORK}/consumer READ_WITH_PREFIX consumer_ cdgrab_DIR)
  if(NOT consumer_cdgrab_DIR MATCHES "^${prefix}/")
    message(FATAL_ERROR "find_package found another cdgrab: ${consumer_cdgrab_DIR}")
  endif()
endif()
run(${CMAKE_COMMAND} --build ${WORK}/consumer --parallel 2)
run(${WORK}/consumer/consumer)
