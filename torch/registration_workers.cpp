// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <memory>
#include <optional>

#include "cdgrab/self_communicator.hpp"
#include "cdgrab/torch/c10d_communicator.hpp"
#include "cdgrab/torch/distributed_sampler.hpp"
#include "registration.hpp"

namespace cdgrab::torch {
namespace {

struct Workers : Observing {
  explicit Workers(DistributedSampler s) : sampler(std::move(s)) {}
  cdgrab::DistributedSampler& core() { return sampler.core(); }
  Turn& turn() { return sampler.turn(); }
  DistributedSampler sampler;
};
using Self = const c10::intrusive_ptr<Workers>&;

std::int64_t signed_of(std::size_t value) { return static_cast<std::int64_t>(value); }

std::size_t worker_of(std::int64_t worker) { return count_of(worker, "worker"); }

Shares make_shares(std::size_t examples, std::int64_t workers,
                   const std::optional<std::vector<Tensor>>& given) {
  if (!given) return Shares::strided(examples, count_of(workers, "workers"));
  std::vector<std::vector<Index>> shares;
  for (const Tensor& share : *given) shares.push_back(as_order(share));
  return {examples, shares};
}

/// Without a group: this process alone.
std::shared_ptr<Communicator> make_communicator(const std::string& group, std::int64_t timeout) {
  std::shared_ptr<Communicator> communicator;
  if (group.empty())
    communicator = std::make_shared<SelfCommunicator>();
  else
    communicator = std::make_shared<C10dCommunicator>(group);
  communicator->set_timeout(std::chrono::milliseconds(timeout));
  return communicator;
}

c10::intrusive_ptr<Workers> make_workers(std::int64_t examples, std::string spec, std::int64_t workers,
                                         std::optional<std::vector<Tensor>> shares, std::int64_t seed,
                                         std::string group, std::int64_t timeout, bool overlap,
                                         std::int64_t hold_limit,
                                         std::vector<std::vector<std::int64_t>> shapes) {
  DistributedOptions options;
  options.seed = static_cast<std::uint64_t>(seed);
  options.overlap = overlap;
  if (hold_limit >= 0) options.hold_limit = static_cast<std::size_t>(hold_limit);
  options.shapes = as_shapes(shapes);
  return c10::make_intrusive<Workers>(
      DistributedSampler(make_shares(count_of(examples, "examples"), workers, shares), spec,
                         make_communicator(group, timeout), std::move(options)));
}

/// One worker's tensors become the mean; of those that have none, the means are only written.
void average(Self self, std::vector<Tensor> gradients, double weight, bool counts) {
  std::vector<std::vector<Tensor>> own(1);
  if (counts) own.front() = gradients;
  self->sampler.average(own, {weight}, gradients);
}

Integers traffic_of(const cdgrab::DistributedSampler& sampler) {
  Integers all;
  const auto add = [&](const std::string& name, Verb verb) {
    const Traffic traffic = sampler.traffic(verb);
    all.insert(name + ".calls", static_cast<std::int64_t>(traffic.calls));
    all.insert(name + ".sent", static_cast<std::int64_t>(traffic.sent));
    all.insert(name + ".received", static_cast<std::int64_t>(traffic.received));
  };
  add("sum", Verb::kSum);
  add("all_gather", Verb::kAllGather);
  add("all_to_all", Verb::kAllToAll);
  return all;
}

void define_passes(::torch::class_<Workers>& workers) {
  workers.def("begin", guarded(+[](Self self) { self->sampler.begin(); }))
      .def("expect_batches", guarded(+[](Self self, std::int64_t size, bool drop_last) {
             self->sampler.expect_batches(count_of(size, "size"), drop_last);
           }))
      .def("upcoming", guarded(+[](Self self, std::int64_t worker, std::int64_t count) {
             return as_tensor(self->core().upcoming(worker_of(worker), count_of(count, "count")));
           }))
      .def("hand_out", guarded(+[](Self self, std::int64_t worker, std::int64_t count) {
             self->core().next(worker_of(worker), count_of(count, "count"));
           }))
      .def("position", guarded(+[](Self self, std::int64_t worker) {
             return as_tuple(self->core().position(worker_of(worker)));
           }))
      .def("trained_position", guarded(+[](Self self, std::int64_t worker) {
             return as_tuple(self->core().trained_position(worker_of(worker)));
           }))
      .def("seek", guarded(+[](Self self, std::int64_t worker, std::int64_t epoch, std::int64_t handed_out) {
             self->core().seek(worker_of(worker),
                               {count_of(epoch, "epoch"), count_of(handed_out, "handed_out")});
           }))
      .def("replay",
           guarded(+[](Self self, std::int64_t worker) { self->core().replay(worker_of(worker)); }));
}

void define_rounds(::torch::class_<Workers>& workers) {
  workers.def("observe_with", guarded(+[](Self self, OptionsPtr options) { self->observe_with(*options); }))
      .def("observe_named", guarded(+[](Self self, std::int64_t worker, Tensor loss, Tensor indices,
                                        std::int64_t repeats, std::optional<Tensor> rows) {
             self->sampler.observe(loss, as_indices(indices), self->options(std::move(rows), repeats),
                                   worker_of(worker));
           }))
      .def("observe_gradients", guarded(+[](Self self, std::int64_t worker, std::vector<Tensor> rows,
                                            std::optional<Tensor> indices) {
             if (indices)
               self->sampler.observe_gradients(rows, as_indices(*indices), worker_of(worker));
             else
               self->sampler.observe_gradients(rows, worker_of(worker));
           }))
      .def("observe_microbatch", guarded(+[](Self self, std::int64_t worker, std::vector<Tensor> parameters) {
             self->sampler.observe_microbatch(parameters, worker_of(worker));
           }))
      .def("step", guarded(+[](Self self) { self->sampler.step(); }))
      .def("average", guarded(&average))
      .def("end_epoch", guarded(+[](Self self) { self->sampler.end_epoch(); }));
}

void define_facts(::torch::class_<Workers>& workers) {
  workers.def("spec", guarded(+[](Self self) { return print_spec(self->core().spec()); }))
      .def("unit", guarded(+[](Self self) { return signed_of(self->core().spec().unit); }))
      .def("balances", guarded(+[](Self self) { return self->core().spec().balances(); }))
      .def("workers", guarded(+[](Self self) { return signed_of(self->core().workers()); }))
      .def("first_worker", guarded(+[](Self self) { return signed_of(self->core().first_worker()); }))
      .def("hosted", guarded(+[](Self self) { return signed_of(self->core().hosted()); }))
      .def("share_size", guarded(+[](Self self, std::int64_t worker) {
             return signed_of(self->core().shares().size(worker_of(worker)));
           }))
      .def("owner", guarded(+[](Self self, std::int64_t example) {
             const auto& shares = self->core().shares();
             const auto index = static_cast<Index>(std::min(count_of(example, "example"), kMaxExamples));
             for (std::size_t w = 0; w < shares.workers(); ++w)
               if (shares.local(w, index)) return signed_of(w);
             throw UserError("owner", "example " + std::to_string(example) + " is nobody's; allowed are 0.." +
                                          std::to_string(shares.examples() - 1));
           }))
      .def("epoch", guarded(+[](Self self) { return static_cast<std::int64_t>(self->core().epoch()); }))
      .def("steps", guarded(+[](Self self) { return static_cast<std::int64_t>(self->core().steps()); }))
      .def("order", guarded(+[](Self self, std::int64_t worker) {
             return as_tensor(self->core().order(worker_of(worker)));
           }))
      .def("order_hash",
           guarded(+[](Self self) { return static_cast<std::int64_t>(self->core().order_hash()); }))
      .def("outstanding", guarded(+[](Self self, std::int64_t worker) {
             return signed_of(self->core().outstanding(worker_of(worker)));
           }))
      .def("report", guarded(+[](Self self, std::int64_t worker) {
             return as_dict(self->core().report(worker_of(worker)));
           }))
      .def("last_report", guarded(+[](Self self, std::int64_t worker) {
             return as_dict(self->core().last_report(worker_of(worker)));
           }))
      .def("held_peak", guarded(+[](Self self) { return signed_of(self->core().held_peak()); }))
      .def("traffic", guarded(+[](Self self) { return traffic_of(self->sampler.core()); }))
      .def("missed_backwards",
           guarded(+[](Self self) { return signed_of(self->sampler.missed_backwards()); }));
}

/// Collective, in its outcome too: no rank goes on before the file is there, or without hearing that it is
/// not.
void save_file(Self self, std::string path, bool write) {
  const State state = self->sampler.save_state();
  std::exception_ptr failure;
  try {
    if (write) save_state(state, path);
  } catch (const FileError&) {
    failure = std::current_exception();
  }
  double failures = failure == nullptr ? 0.0 : 1.0;
  self->sampler.communicator().sum({&failures, 1});
  if (failure != nullptr) std::rethrow_exception(failure);
  if (failures > 0.0) throw FileError(path, "the rank that writes could not; its error says why");
}

void define_states(::torch::class_<Workers>& workers) {
  workers.def("state", guarded(+[](Self self) { return as_dicts(self->sampler.local_state()); }))
      .def("save", guarded(+[](Self self) { return as_dicts(self->sampler.save_state()); }))
      .def("load", guarded(+[](Self self, Integers integers, Numbers numbers, Texts texts, Tensors tensors) {
             return self->sampler.load_state(as_state(integers, numbers, texts, tensors)).text;
           }))
      .def("save_file", guarded(&save_file))
      .def("read_file", guarded(+[](Self /*self*/, std::string path) { return as_dicts(load_state(path)); }));
}

}  // namespace

void define_workers(::torch::Library& library) {
  auto workers = library.class_<Workers>("DistributedSampler").def(::torch::init(guarded(&make_workers)));
  define_passes(workers);
  define_rounds(workers);
  define_facts(workers);
  define_states(workers);
}

}  // namespace cdgrab::torch
