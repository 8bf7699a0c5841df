// What schedulers do, as chunks of the record: plans, their counts, memory laid out again, computes.
#include "record_state.h"

#include "ggml-impl.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace gp {

namespace {

uint64_t mixed(uint64_t hash, const void * data, size_t size) {
    const char * p = (const char *) data;
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    uint64_t word = size;
    memcpy(&word, p, size);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

void count(pair_of key, int what, int32_t layout) {
    gp_record_seen & s = current->seen[key];
    const int64_t time = record_now();
    if (s.first == 0) {
        s.plan      = (uint32_t) key.plan;
        s.scheduler = key.scheduler;
        s.first     = time;
        s.layout    = -1;
    }
    if (s.last <= current->flushed) {
        current->dirty.push_back(key);
    }
    (what == 0 ? s.planned : what == 1 ? s.allocated : s.computed)++;
    s.last = time;
    s.layout = what == 1 ? layout : s.layout;
    // What it is, reserved or computed, is known at once; how often, once a second.
    const bool first = (what == 1 && s.allocated == 1) || (what == 2 && s.computed == 1);
    if (first || time - current->flushed > 1000000000) {
        current->flush();
    }
}

std::string shape(const int64_t * ne) {
    int n = 4;
    while (n > 1 && ne[n - 1] == 1) {
        n--;
    }
    std::string text = "[";
    for (int i = 0; i < n; i++) {
        text += (i ? ", " : "") + std::to_string(ne[i]);
    }
    return text + "]";
}

// How a plan differs from an earlier one, in a clause; "first" without one.
std::string difference(const record & r, int32_t before, const gp_plan & plan) {
    if (before < 0 || (size_t) before >= r.plan_rows.size()) {
        return "first";
    }
    const plan_facts & old = r.plan_rows[before];
    if (old.n_nodes != plan.n_nodes) {
        return std::to_string(plan.n_nodes) + " nodes, not " + std::to_string(old.n_nodes);
    }
    // An input that differs explains more than a result that was computed from it.
    const auto named = [](const gp_tensor_record & t) { return "'" + std::string(t.name) + "'"; };
    const auto find = [&](auto differs) -> const gp_tensor_record * {
        const size_t n = std::min(old.rows.size(), (size_t) plan.n_tensors);
        for (size_t k = 0; k < n; k++) {
            const size_t i = (k + (size_t) plan.n_nodes) % n;
            if (old.rows[i] < r.facts.size() && differs(r.facts[old.rows[i]], plan.tensors[i])) {
                return &plan.tensors[i];
            }
        }
        return nullptr;
    };
    const auto was = [&](const gp_tensor_record * t) -> const row_facts & { return r.facts[old.rows[t - plan.tensors]]; };
    if (const auto * t = find([](const row_facts & f, const gp_tensor_record & t) { return memcmp(f.ne, t.ne, sizeof(f.ne)) != 0; })) {
        return named(*t) + " is " + shape(t->ne) + ", not " + shape(was(t).ne);
    }
    if (const auto * t = find([](const row_facts & f, const gp_tensor_record & t) { return f.op != t.op; })) {
        return named(*t) + " is " + t->op_desc + ", not " + ggml_op_name((enum ggml_op) was(t).op);
    }
    if (const auto * t = find([](const row_facts & f, const gp_tensor_record & t) { return f.pin != t.pin; })) {
        return "pin of " + named(*t);
    }
    if (const auto * t = find([](const row_facts & f, const gp_tensor_record & t) { return f.backend != t.backend; })) {
        return named(*t) + " is on another backend";
    }
    if (const auto * t = find([](const row_facts & f, const gp_tensor_record & t) { return f.buffer != t.buffer; })) {
        return named(*t) + " is in other memory";
    }
    return "names, parameters or memory";
}

} // namespace

uint32_t record_scheduler(const void * sched, const std::string & about) {
    std::lock_guard<std::mutex> guard(record_lock);
    if (!current) {
        open_wanted();
    }
    if (!current) {
        return 0;
    }
    const auto found = current->schedulers.emplace(sched, current->n_schedulers);
    if (found.second) {
        current->n_schedulers++;
        current->put_json("schd", "{\"scheduler\":" + std::to_string(found.first->second) + "," + about + "}");
    }
    return found.first->second;
}

void record_forget(const void * sched) {
    std::lock_guard<std::mutex> guard(record_lock);
    if (current) {
        current->schedulers.erase(sched);
    }
}

int32_t record_plan(const gp_plan & plan, uint32_t scheduler, uint64_t thread, int32_t before, std::string & why) {
    std::lock_guard<std::mutex> guard(record_lock);
    why.clear();
    if (!current) {
        return -1;
    }
    record & r = *current;
    const size_t n = (size_t) plan.n_tensors;
    std::vector<hash_key> keys(n);
    hash_key whole = { 1, 2 };
    const auto add = [&whole](const void * data, size_t size) { whole = { mixed(whole.a, data, size), mixed(whole.b, data, size) }; };
    for (size_t i = 0; i < n; i++) {
        keys[i] = { mixed(1, &plan.tensors[i], sizeof(plan.tensors[i])), mixed(2, &plan.tensors[i], sizeof(plan.tensors[i])) };
        add(&keys[i], sizeof(keys[i]));
    }
    // Rows of tensors are written once, and plans have their numbers.
    gp_record_plan head = {};
    std::vector<section> sections;
#define ARRAY(type, name, tag, differs) \
    if (std::string(tag) != "tensors") { \
        sections.push_back(rows(tag, plan.name, plan.n_##name)); \
        if (differs) { \
            add(plan.name, plan.n_##name * sizeof(type)); \
        } \
    }
#define NUMBER(type, name, differs) \
    head.name = plan.name; \
    if (differs) { \
        add(&plan.name, sizeof(type)); \
    }
    GP_PLAN_ARRAYS(ARRAY)
    GP_PLAN_NUMBERS(NUMBER)
#undef ARRAY
#undef NUMBER
    const auto known = r.plans.find(whole);
    if (known != r.plans.end()) {
        return known->second;
    }
    // Numbers of rows are given only once the plan is written: a plan that is left out needs none.
    std::unordered_map<hash_key, uint32_t, hash_of> added;
    std::vector<gp_tensor_record> fresh;
    plan_facts facts;
    facts.n_nodes = plan.n_nodes;
    for (size_t i = 0; i < n; i++) {
        const auto old = r.rows.find(keys[i]);
        if (old != r.rows.end()) {
            facts.rows.push_back(old->second);
            continue;
        }
        const auto found = added.emplace(keys[i], (uint32_t) (r.facts.size() + fresh.size()));
        if (found.second) {
            fresh.push_back(plan.tensors[i]);
        }
        facts.rows.push_back(found.first->second);
    }
    const uint64_t size = fresh.size() * sizeof(gp_tensor_record) + facts.rows.size() * 4;
    if (r.failed || (r.options.first && r.n_plans >= r.options.first) || r.size + size > r.options.max_size) {
        r.n_left_out++;
        if (!r.failed && !r.said_full && r.options.lines) {
            r.said_full = true;
            const bool by_number = r.options.first && r.n_plans >= r.options.first;
            record_say(std::to_string(r.n_plans) + (r.n_plans == 1 ? " plan is" : " plans are") +
                (by_number ? " written (--first)" : " written, and the record is full (--max-size)") + ": later ones are only counted");
        }
        return -1;
    }
    head.plan      = (uint32_t) r.n_plans;
    head.scheduler = scheduler;
    head.time      = record_now();
    head.thread    = thread;
    head.before    = before;
    std::string said = difference(r, before, plan);
    sections.push_back({ "why", said.data(), said.size() });
    sections.insert(sections.begin(), {
        { "plan", &head, sizeof(head) }, rows("rows", fresh.data(), fresh.size()), rows("ids", facts.rows.data(), facts.rows.size()) });
    if (!r.put("plan", sections)) {
        r.n_left_out++;
        return -1;
    }
    why.swap(said);
    for (const gp_tensor_record & t : fresh) {
        r.facts.push_back({ { t.ne[0], t.ne[1], t.ne[2], t.ne[3] }, t.op, t.backend, t.pin, t.buffer });
    }
    r.rows.insert(added.begin(), added.end());
    r.plans.emplace(whole, (int32_t) r.n_plans);
    r.plan_rows.push_back(std::move(facts));
    return (int32_t) r.n_plans++;
}

void record_seen(uint32_t scheduler, int32_t plan, int what, int32_t layout) {
    std::lock_guard<std::mutex> guard(record_lock);
    if (current && plan >= 0) {
        count({ scheduler, plan }, what, layout);
    }
}

void record_left_out() {
    std::lock_guard<std::mutex> guard(record_lock);
    if (current) {
        current->n_left_out++;
    }
}

void record_realloc(uint32_t scheduler, int32_t plan, const gp_realloc_record & reason) {
    std::lock_guard<std::mutex> guard(record_lock);
    if (current) {
        gp_record_realloc r = {};
        r.plan      = (uint32_t) plan;
        r.scheduler = scheduler;
        r.time      = record_now();
        r.reason    = reason;
        current->put("allc", { rows("reallocs", &r, 1) });
    }
}

void record_events(uint32_t scheduler, int32_t plan, int32_t compute, std::vector<gp_run_event> & events, size_t lost) {
    std::lock_guard<std::mutex> guard(record_lock);
    if (current && current->size + current->events.size() * sizeof(gp_run_event) <= current->options.max_size) {
        current->computes.push_back({ scheduler, plan, compute, (int32_t) lost, (int32_t) events.size() });
        for (gp_run_event & event : events) {
            event.inside += event.inside < 0 ? 0 : (int32_t) current->events.size();
        }
        current->events.insert(current->events.end(), events.begin(), events.end());
        if (current->events.size() > 8192) {
            current->flush();
        }
    } else if (current) {
        current->n_left_out++;
    }
    events.clear();
}

} // namespace gp
