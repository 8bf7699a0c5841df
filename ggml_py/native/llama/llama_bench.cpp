// The start of llama-bench, which is otherwise upstream's own.
//
//   GGML_PY_BACKENDS       folder of the build of ggml: --portable has backends as modules there. ggml-py sets it, and
//                          the program ends with ggml-py
//   GGML_PY_ACCELERATORS   names of the accelerators that compute, with "," between them. Unset: all
//   GGML_PY_WORK_OFFSET    bytes behind a cache line where the CPU's work begins (0; upstream's programs have 16)

#include "llama_plan.h"

#include "ggml-backend.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#ifdef __linux__
#include <csignal>
#include <sys/prctl.h>
#endif

int llama_bench(int argc, char ** argv);

int main(int argc, char ** argv) {
    if (const char * folder = std::getenv("GGML_PY_BACKENDS")) {
#ifdef __linux__
        prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
        ggml_backend_load_all_from_path(folder);
        unsetenv("GGML_BACKEND_PATH"); // it is loaded; llama_bench would do so again
    }
    if (const char * names = std::getenv("GGML_PY_ACCELERATORS")) {
        std::vector<ggml_backend_dev_t> devices;
        std::istringstream given(names);
        for (std::string name; std::getline(given, name, ',');) {
            if (ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str())) {
                devices.push_back(device);
            }
        }
        gpl_use_accelerators(devices.data(), (int32_t) devices.size());
    }
    if (const char * bytes = std::getenv("GGML_PY_WORK_OFFSET")) {
        ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        void * set = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "gp_cpu_set_work_offset");
        ((void (*)(size_t)) set)(std::strtoul(bytes, nullptr, 10));
    }
    try {
        return llama_bench(argc, argv);
    } catch (const std::exception & error) { // upstream's downloads, which are not compiled in
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
