// guard.h for a module beside _ggml: everything is done by _ggml (shared.h).

#include "shared.h"

#include "guard.h"

extern "C" {
const gp_shared * gp_table = nullptr;

void gp_share(void * shared) { gp_table = (const gp_shared *) shared; }

gp_error * gp_last_error(void) { return gp_table->last_error(); }
}

namespace gp {

scope::scope() : held(gp_table->enter()) {}
scope::~scope() { gp_table->leave(held); }

changing::changing() { gp_table->changed(); }
changing::~changing() { gp_table->changed(); }

void caught(const char * call) { gp_table->caught(call); }
void fail(int kind, const char * call, const char * message) { gp_table->fail(kind, call, message); }

void show(const char * name, const ggml_tensor * tensor) { gp_table->show_tensor(name, tensor); }
void show(const char * name, const char * text) { gp_table->show_text(name, text); }
void show(const char * name, double value) { gp_table->show_number(name, value); }

} // namespace gp
