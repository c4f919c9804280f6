/* daemon.c - methods of _core.Client about the daemon itself */
#include "core.h"

PyObject *daemon_stop(CORE_METHOD_ARGUMENTS) {
    return client_do(self, type, args, nargs, kwnames, tcx_stop);
}

PyObject *daemon_stats(CORE_METHOD_ARGUMENTS) {
    (void)args;
    tcx_client_t *client = client_usable(self);
    if (!client || !core_args(0, nargs, kwnames))
        return NULL;
    tcx_stats_t s;
    char version[64], boot_id[17];
    int status;
    CORE_BEGIN_ASKING
    status = tcx_stats(client, &s);
    CORE_END_ASKING
    if (status)
        return core_raise(core_state(type), status);
    tcx_daemon_version(client, version, sizeof version);
    PyOS_snprintf(boot_id, sizeof boot_id, "%016llx", (unsigned long long)s.boot_id);
    return Py_BuildValue(
        "{s:K, s:s, s:s, s:N, s:s, s:d, s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K, s:K,"
        " s:K, s:K, s:K, s:K}",
        "pid", s.pid, "version", version, "boot_id", boot_id, "socket", client_socket(self, NULL),
        "backing", s.backing ? "memfd" : "posix", "uptime", (double)s.uptime_ms / 1e3, "clients",
        s.clients, "holds", s.holds, "storages", s.storages, "bytes", s.bytes, "names", s.names,
        "tickets", s.tickets, "channels", s.channels, "segments", s.segments, "committed_bytes",
        s.committed_bytes, "warm_bytes", s.warm_bytes, "capacity_bytes", s.capacity_bytes,
        "waiting", s.waiting, "last_version", s.version, "requests", s.requests, "dropped",
        s.dropped, "devices", s.devices);
}

static PyObject *peer_to_python(const tcx_peer_t *peer) {
    return Py_BuildValue("{s:K, s:i, s:i, s:N, s:K, s:K, s:K, s:K, s:K, s:d, s:N, s:N}", /* */
                         "id", peer->id, "pid", peer->pid, "uid", peer->uid, "program",
                         text_to_python(peer->program), "tensors", peer->storages, "bytes",
                         peer->bytes, "device_bytes", peer->device_bytes, "tickets", peer->tickets,
                         "waiting", peer->waiting, "age", peer->age, "connected",
                         PyBool_FromLong(peer->connected), "is_self",
                         PyBool_FromLong(peer->is_self));
}

static int add_peer(void *list, const tcx_peer_t *peer) {
    core_enter_python();
    return core_list_add(list, peer_to_python(peer));
}

static int ask_peers(tcx_client_t *client, void *list) {
    return tcx_clients(client, add_peer, list);
}

PyObject *daemon_clients(CORE_METHOD_ARGUMENTS) {
    return client_collect(self, type, args, nargs, kwnames, ask_peers);
}
