#include "binding.h"
#include "isa.h"
#include "pool.h"
#include "tape.h"

namespace pagewell {
namespace {

void bind_machine(nb::module_& m) {
    m.def("levels", &usable_levels, "Instruction-set levels that this machine and this build have, rising.");
    m.def("level", &level, "The level in use.");
    m.def("set_level", &set_level, nb::arg("name"));
    m.def("n_threads", [] { return pool().n_threads(); });
    m.def("set_threads", &set_threads, nb::arg("n_threads"), "Replace the pool; nothing may be running on it.");
    m.def("physical_cores", &physical_cores);
}

void bind_tape(nb::module_& m) {
    nb::class_<Op>(m, "Op").def(
        "run",
        [](const Op& op, int64_t n_rows, int64_t n_seqs) {
            nb::gil_scoped_release release;
            op.run({n_rows, n_seqs});
        },
        nb::arg("n_rows"), nb::arg("n_seqs") = 0);
    nb::class_<Tape>(m, "Tape")
        .def(nb::init<>())
        .def("append", [](Tape& tape, const Op& op) { tape.append(&op); }, nb::keep_alive<1, 2>())
        .def(
            "run",
            [](const Tape& tape, int64_t n_rows, int64_t n_seqs) {
                nb::gil_scoped_release release;
                tape.run({n_rows, n_seqs});
            },
            nb::arg("n_rows"), nb::arg("n_seqs") = 0)
        .def(
            "run_timed",
            [](Tape& tape, int64_t n_rows, int64_t n_seqs) {
                nb::gil_scoped_release release;
                tape.run_timed({n_rows, n_seqs});
            },
            nb::arg("n_rows"), nb::arg("n_seqs") = 0)
        .def_prop_ro("seconds", &Tape::seconds, "Of each operator, summed over the timed runs.");
}

}  // namespace
}  // namespace pagewell

NB_MODULE(_native, m) {
    pagewell::bind_machine(m);
    pagewell::bind_tape(m);
    pagewell::bind_attention(m);
    pagewell::bind_cache(m);
    pagewell::bind_experts(m);
    pagewell::bind_heads(m);
    pagewell::bind_limits(m);
    pagewell::bind_linear(m);
    pagewell::bind_recurrent(m);
    pagewell::bind_rows(m);
    pagewell::bind_sample(m);
    pagewell::bind_sums(m);
}
