// SPDX-License-Identifier: Apache-2.0
// Everything; include this, or the headers you need.
#pragma once

    =======
    >>>>>>> comm
#include "cdgrab/balancer.hpp"
#include "cdgrab/code.hpp"
#include "cdgrab/communicator.hpp"
#include "cdgrab/composite_geometry.hpp"
#include "cdgrab/dense_geometry.hpp"
#include "cdgrab/distributed_sampler.hpp"
#include "cdgrab/error.hpp"
#include "cdgrab/geometry.hpp"
#include "cdgrab/gram_geometry.hpp"
#include "cdgrab/herding.hpp"
#include "cdgrab/npy.hpp"
#include "cdgrab/order.hpp"
#include "cdgrab/permutation.hpp"
#include "cdgrab/random.hpp"
#include "cdgrab/sampler.hpp"
#include "cdgrab/self_communicator.hpp"
#include "cdgrab/shares.hpp"
#include "cdgrab/sign_rule.hpp"
#include "cdgrab/sketch.hpp"
#include "cdgrab/sliced_geometry.hpp"
#include "cdgrab/spec.hpp"
#include "cdgrab/state.hpp"
#include "cdgrab/thread_communicator.hpp"
#include "cdgrab/version.hpp"
