# SPDX-License-Identifier: Apache-2.0
# The component mpi, included by cdgrabConfig.cmake: the MPI that cdgrab was built with, or one that is binary
# compatible.
find_package(MPI QUIET COMPONENTS CXX)
if(MPI_CXX_FOUND)
  include(${CMAKE_CURRENT_LIST_DIR}/cdgrabMpiTargets.cmake)
  set(cdgrab_mpi_FOUND TRUE)
else()
  set(cdgrab_NOT_FOUND_MESSAGE "cdgrab::mpi needs MPI, and none is found; is mpicxx in PATH, and CXX a language of the project?")
endif()
