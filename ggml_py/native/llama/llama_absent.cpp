// Compiled into upstream's common library in place of its downloads, which would need an HTTP client: whoever asks for
// a model that is not a file gets an error.

#include "download.h"
#include "hf-cache.h"

#include <stdexcept>

[[noreturn]] static void absent() {
    throw std::invalid_argument("models are not downloaded here: give the file or its https address with -m");
}

std::string common_docker_resolve_model(const std::string &) { absent(); }

std::vector<std::string> common_download_get_all_parts(const std::string &) { absent(); }

common_download_hf_plan common_download_get_hf_plan(const common_params_model &, const common_download_opts &) { absent(); }

void common_download_run_tasks(const std::vector<common_download_task> & tasks) {
    if (!tasks.empty()) {
        absent();
    }
}

std::vector<common_cached_model_info> common_list_cached_models() { absent(); }

std::string hf_cache::finalize_file(const hf_file &) { absent(); }
