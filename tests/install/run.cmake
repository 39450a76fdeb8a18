# SPDX-License-Identifier: Apache-2.0
# Builds the consumer and runs it.
#   cmake -D MODE=package|subdirectory|shared|torch|mpi -D SOURCE=.. -D BUILD=.. -D WORK=.. [-D TORCH=..] [-D MPIRUN=..] -P run.cmake
# package: SOURCE's finished build tree BUILD, installed. subdirectory: SOURCE as part of the consumer.
# shared: SOURCE built anew as a shared library, installed. torch: as package, with the consumer of the adapter
# and the torch whose CMake files are in TORCH. mpi: as package, with the consumer of cdgrab::mpi. WORK is kept, so that a second run is quick.
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
set(unneeded Torch MPI Python Python3 PythonInterp PythonLibs pybind11)
set(consumer consumer)
if(MODE STREQUAL "torch")
  list(REMOVE_ITEM unneeded Torch)
  set(consumer consumer_torch)
elseif(MODE STREQUAL "mpi")
  list(REMOVE_ITEM unneeded MPI)
  set(consumer consumer_mpi)
endif()
foreach(package IN LISTS unneeded)
  list(APPEND common -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Runs a command that is to end in success or failure, and to say this on stderr, line breaks aside.
function(run_and_hear expect words)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status ERROR_VARIABLE said)
  string(REGEX REPLACE "[ \n]+" " " said "${said}")
  set(ended failure)
  if(status EQUAL 0)
    set(ended success)
  endif()
  if(NOT ended STREQUAL expect OR NOT said MATCHES "${words}")
    message(FATAL_ERROR "expected ${expect} and '${words}', not status ${status} and: ${said}")
  endif()
endfunction()

# Configures the consumer of a component, which is to be refused.
function(configure_and_hear component words)
  file(REMOVE_RECURSE ${WORK}/refused)
  run_and_hear(failure "${words}" ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer_${component} -B ${WORK}/refused
               ${common} -DCMAKE_PREFIX_PATH=${prefix} ${ARGN})
endfunction()

if(MODE MATCHES "^(package|torch|mpi)$")
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
elseif(MODE STREQUAL "shared")
  run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/library ${common} -DBUILD_SHARED_LIBS=ON -DCDGRAB_BUILD_CLI=OFF
      -DCDGRAB_BUILD_TESTS=OFF -DCDGRAB_BUILD_BENCH=OFF -DCDGRAB_BUILD_EXAMPLES=OFF)
  run(${CMAKE_COMMAND} --build ${WORK}/library --parallel 2)
  run(${CMAKE_COMMAND} --install ${WORK}/library --prefix ${prefix})
  configure_and_hear(torch "installed without its torch component; build it with -DCDGRAB_BUILD_TORCH=ON")
  configure_and_hear(mpi "installed without its mpi component; build it with -DCDGRAB_BUILD_MPI=ON")
endif()

if(MODE STREQUAL "subdirectory")
  set(where -DCDGRAB_SOURCE=${SOURCE})
else()
  # What the library uses inside is no business of the consumer's.
  set(where -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON
            -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON)
endif()
if(MODE STREQUAL "torch")
  list(APPEND where -DTorch_DIR=${TORCH})
endif()
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/${consumer} -B ${WORK}/consumer ${common} ${where})
if(NOT MODE STREQUAL "subdirectory")
  load_cache(${WORK}/consumer READ_WITH_PREFIX consumer_ cdgrab_DIR)
  if(NOT consumer_cdgrab_DIR MATCHES "^${prefix}/")
    message(FATAL_ERROR "find_package found another cdgrab: ${consumer_cdgrab_DIR}")
  endif()
endif()
run(${CMAKE_COMMAND} --build ${WORK}/consumer --parallel 2)
run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${WORK}/consumer/consumer)
if(MODE STREQUAL "mpi")
  run(${CMAKE_COMMAND} -E env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
      OMPI_MCA_rmaps_base_oversubscribe=1 ${MPIRUN} -np 3 ${WORK}/consumer/consumer 3)
  configure_and_hear(mpi "cdgrab::mpi needs MPI, and none is found" -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON)
endif()

if(MODE STREQUAL "torch")
  # Another torch, when the program starts and when it is configured.
  set(other "cdgrab: built for torch [0-9.]+, but torch [0-9.]+ is loaded; rebuild cdgrab against it")
  set(with ${CMAKE_COMMAND} -E env LD_PRELOAD=${WORK}/consumer/libother_)
  run_and_hear(failure "${other}" ${with}minor.so ${WORK}/consumer/consumer)
  run_and_hear(success "${other}" ${with}patch.so ${WORK}/consumer/consumer)
  file(WRITE ${WORK}/torch/TorchConfig.cmake "")
  file(WRITE ${WORK}/torch/TorchConfigVersion.cmake "set(PACKAGE_VERSION 1.2.3)")
  configure_and_hear(torch "built for torch [0-9.]+, but torch 1.2.3 is found .* rebuild cdgrab against it"
                     -DTorch_DIR=${WORK}/torch)
  configure_and_hear(torch "needs torch [0-9.]+, and none is found" -DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON)

  # From the source tree, as far as is quick.
  file(REMOVE ${WORK}/subdirectory/CMakeCache.txt)
  run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer_torch -B ${WORK}/subdirectory ${common}
      -DCDGRAB_SOURCE=${SOURCE} -DCDGRAB_BUILD_TORCH=ON -DTorch_DIR=${TORCH})

  # Nothing that is found at run time or by CMake names a folder of this machine.
  file(GLOB_RECURSE files ${prefix}/*.cmake)
  foreach(file IN LISTS files)
    file(READ ${file} text)
    string(APPEND installed "${text}")
  endforeach()
  file(GLOB_RECURSE library ${prefix}/*/libcdgrab_torch.so)
  execute_process(COMMAND readelf -d ${library} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(APPEND installed "${text}")
  cmake_path(APPEND TORCH ../../.. OUTPUT_VARIABLE torch)
  cmake_path(NORMAL_PATH torch)
  foreach(path ${SOURCE} ${BUILD} ${torch})
    string(FIND "${installed}" "${path}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${path} is in an installed file")
    endif()
  endforeach()
endif()
