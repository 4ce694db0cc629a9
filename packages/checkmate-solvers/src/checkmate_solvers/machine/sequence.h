/* Editing a sequence: insert or remove one compute, and know its memory at once.
 *
 * A copy made by node x and last read by node d is resident at the positions of x to d; if the op of d reuses
 * it, it does not count at the position of d. So an edit adds or takes the bytes of a few copies over stretches
 * of the sequence, and nothing else; with n nodes it costs about sqrt(n). Every edit is logged, and undone by
 * the opposite one.
 *
 * The base bytes (graph inputs, fixed size) are not counted here: budgets are bytes beside them. */

/* The next position with a node; the first one if `position` is -1. There must be one. */
static Int following(State *s, Int position) {
    Int block = position >> SHIFT;
    if (position >= 0 && (position & INSIDE) + 1 < s->filled[block]) return position + 1;
    do block++;
    while (s->filled[block] == 0);
    return block << SHIFT;
}

/* The position with a node before this one; -1 if there is none. */
static Int preceding(State *s, Int position) {
    if (position & INSIDE) return position - 1;
    Int block = (position >> SHIFT) - 1;
    while (block >= 0 && s->filled[block] == 0) block--;
    return block >= 0 ? (block << SHIFT) + s->filled[block] - 1 : -1;
}

/* The block with the most memory, the first of several. */
static Int fullest_block(State *s) {
    Int fullest = 0;
    for (Int block = 1; block < s->counts[BLOCKS]; block++)
        if (s->most[block] > s->most[fullest]) fullest = block;
    return fullest;
}

/* The most memory of any node. */
Int peak(State *s) { return s->most[fullest_block(s)]; }

/* Whether any node at positions `first` to `last` has more memory than `size`. */
bool exceeds(State *s, Int first, Int last, Int size) {
    for (Int block = first >> SHIFT; block <= last >> SHIFT; block++) {
        if (s->most[block] <= size) continue;
        Int corner = block << SHIFT, left = size - s->add[block];
        Int end = smaller(last + 1, corner + s->filled[block]);
        for (Int p = larger(first, corner); p < end; p++)
            if (s->mem[p] > left) return true;
    }
    return false;
}

/* Find the most memory of a block again. */
static void refresh(State *s, Int block) {
    Int most = NOTHING;
    const Int *mem = s->mem + (block << SHIFT);
    for (Int i = 0; i < s->filled[block]; i++) most = larger(most, mem[i]);
    s->most[block] = most + s->add[block];
}

/* Add bytes to the memory at positions `first` to `last`. */
static void add_bytes(State *s, Int first, Int last, Int size) {
    if (size == 0 || last < first) return;
    for (Int block = first >> SHIFT; block <= last >> SHIFT; block++) {
        Int corner = block << SHIFT, end = corner + s->filled[block];
        Int start = larger(first, corner), stop = smaller(last + 1, end);
        if (start == corner && stop == end) {
            s->add[block] += size;
            s->most[block] += size;
        } else if (start < stop) {
            Int most = NOTHING;
            for (Int p = start; p < stop; p++) {
                s->mem[p] += size;
                most = larger(most, s->mem[p]);
            }
            most += s->add[block];
            if (size > 0)
                s->most[block] = larger(s->most[block], most);
            else if (most - size == s->most[block])
                refresh(s, block);
        }
    }
}

/* The last node of op `v` before a position; -1 if there is none. */
Int latest(State *s, Int v, Int position) {
    Int node = s->tail[v];
    while (node >= 0 && s->pos[node] >= position) node = s->prev[node];
    return node;
}

/* The last position at which a copy of tensor `t` takes memory, if `node` is the last to read it. */
static Int last_counted(State *s, Int node, Int t) {
    Int v = s->op[node];
    for (Int i = s->reuses_at[v]; i < s->reuses_at[v + 1]; i++)
        if (s->reuses[i] == t) return s->pos[node] - 1;
    return s->pos[node];
}

/* Let `node` be the last that reads the copy of tensor `t` made by `source`. */
static void end_copy(State *s, Int source, Int t, Int node) {
    Int *death = death_of(s, source, s->place[t]);
    Int before = last_counted(s, *death, t), now = last_counted(s, node, t);
    *death = node;
    add_bytes(s, before + 1, now, s->size[t]);
    add_bytes(s, now + 1, before, -s->size[t]);
}

/* The last node before a position that reads the copy of tensor `t` made by `source`; else `source`. */
static Int last_read(State *s, Int t, Int source, Int before) {
    Int last = source;
    for (Int i = s->users_at[t]; i < s->users_at[t + 1]; i++) {
        Int node = latest(s, s->users[i], before);
        if (node >= 0 && s->pos[node] > s->pos[last]) last = node;
    }
    return last;
}

/* The first node after a position that reads tensor `t`; -1 if there is none. */
static Int first_read(State *s, Int t, Int after) {
    Int first = -1, where = 0;
    for (Int i = s->users_at[t]; i < s->users_at[t + 1]; i++) {
        for (Int node = s->tail[s->users[i]]; node >= 0 && s->pos[node] > after; node = s->prev[node]) {
            if (first < 0 || s->pos[node] < where) {
                first = node;
                where = s->pos[node];
            }
        }
    }
    return first;
}

/* Give every block the same number of nodes again: move all nodes to the front, then apart. */
void lay_out(State *s) {
    Int n = 0;
    for (Int block = 0; block < s->counts[BLOCKS]; block++) {
        for (Int p = block << SHIFT; p < (block << SHIFT) + s->filled[block]; p++, n++) {
            s->at[n] = s->at[p];
            s->mem[n] = s->mem[p] + s->add[block];
        }
    }
    s->counts[BLOCKS] = (n + FILLED - 1) / FILLED;
    for (Int block = s->counts[BLOCKS] - 1; block >= 0; block--) {
        s->filled[block] = smaller(FILLED, n - block * FILLED);
        s->add[block] = 0;
        for (Int i = s->filled[block] - 1; i >= 0; i--) {
            Int p = (block << SHIFT) + i;
            s->at[p] = s->at[block * FILLED + i];
            s->mem[p] = s->mem[block * FILLED + i];
            s->pos[s->at[p]] = p;
        }
        refresh(s, block);
    }
}

/* Add a node to the nodes of its op. */
static void enter(State *s, Int node) {
    Int v = s->op[node], after = -1, before = s->tail[v];
    while (before >= 0 && s->pos[before] >= s->pos[node]) {
        after = before;
        before = s->prev[before];
    }
    s->prev[node] = before;
    if (before < 0) s->head[v] = node;
    if (after < 0)
        s->tail[v] = node;
    else
        s->prev[after] = node;
    s->totals[COST] += s->cost[v];
    s->runs[v]++;
    if (s->runs[v] == 2) {
        s->rank[v] = s->counts[REPEATED]++;
        s->repeated[s->rank[v]] = v;
    }
}

/* Take a node out of the nodes of its op. */
static void leave(State *s, Int node) {
    Int v = s->op[node], after = -1;
    for (Int x = s->tail[v]; x != node; x = s->prev[x]) after = x;
    if (s->prev[node] < 0) s->head[v] = after;
    if (after < 0)
        s->tail[v] = s->prev[node];
    else
        s->prev[after] = s->prev[node];
    s->totals[COST] -= s->cost[v];
    s->runs[v]--;
    if (s->runs[v] == 1) {
        Int moved = s->repeated[--s->counts[REPEATED]], rank = s->rank[v];
        s->repeated[rank] = moved;
        s->rank[moved] = rank;
    }
}

/* Let later reads use this node's copies instead of the previous ones; the caller updates its block's most. */
static void copies_appear(State *s, Int node) {
    Int v = s->op[node], here = s->pos[node], before = s->prev[node];
    for (Int i = s->makes_at[v]; i < s->makes_at[v + 1]; i++) {
        Int t = s->makes[i], k = i - s->makes_at[v];
        *death_of(s, node, k) = node;
        Int *death = before >= 0 ? death_of(s, before, k) : NULL;
        if (death && s->pos[*death] > here) {
            *death_of(s, node, k) = *death;
            *death = last_read(s, t, before, here);
            add_bytes(s, last_counted(s, *death, t) + 1, here - 1, -s->size[t]);
        } else {
            s->mem[here] += s->size[t];
        }
    }
}

static void note(State *s, Int what, Int successor) {
    Int *entry = &s->log[2 * s->counts[LOGGED]++];
    entry[0] = what;
    entry[1] = successor;
}

/* Compute op `v` just before a node; its inputs must have been made before. Returns the new node. */
Int insert_node(State *s, Int v, Int successor) {
    if (s->filled[s->pos[successor] >> SHIFT] == BLOCK) lay_out(s);
    Int here = s->pos[successor], block = here >> SHIFT, u = s->op[successor];
    Int carried = s->mem[here] - s->workspace[u] - s->made[u];
    for (Int i = s->reuses_at[u]; i < s->reuses_at[u + 1]; i++) {
        Int t = s->reuses[i];
        if (*death_of(s, latest(s, s->producer[t], here), s->place[t]) == successor) carried += s->size[t];
    }
    for (Int p = (block << SHIFT) + s->filled[block]; p > here; p--) {
        s->at[p] = s->at[p - 1];
        s->mem[p] = s->mem[p - 1];
        s->pos[s->at[p]] = p;
    }
    Int node = s->free[--s->counts[FREE]];
    s->filled[block]++;
    s->at[here] = node;
    s->op[node] = v;
    s->pos[node] = here;
    s->mem[here] = carried + s->workspace[v];
    enter(s, node);
    copies_appear(s, node);
    s->most[block] = larger(s->most[block], s->mem[here] + s->add[block]);
    for (Int i = s->reads_at[v]; i < s->reads_at[v + 1]; i++) {
        Int t = s->reads[i], source = latest(s, s->producer[t], here);
        if (s->pos[*death_of(s, source, s->place[t])] < here) end_copy(s, source, t, node);
    }
    note(s, node, -1);
    return node;
}

/* Remove a compute; if its outputs are read, an earlier compute of its op must be there. */
void remove_node(State *s, Int node) {
    Int v = s->op[node], here = s->pos[node], before = s->prev[node], block = here >> SHIFT;
    Int successor = s->at[following(s, here)];
    leave(s, node);
    for (Int i = s->reads_at[v]; i < s->reads_at[v + 1]; i++) {
        Int t = s->reads[i], source = latest(s, s->producer[t], here);
        if (*death_of(s, source, s->place[t]) == node) end_copy(s, source, t, last_read(s, t, source, here));
    }
    for (Int i = s->makes_at[v]; i < s->makes_at[v + 1]; i++) {
        Int t = s->makes[i], k = i - s->makes_at[v], death = *death_of(s, node, k);
        if (death != node) {
            add_bytes(s, last_counted(s, *death_of(s, before, k), t) + 1, here - 1, s->size[t]);
            *death_of(s, before, k) = death;
        }
    }
    bool fullest = s->mem[here] + s->add[block] == s->most[block];
    s->filled[block]--;
    for (Int p = here; p < (block << SHIFT) + s->filled[block]; p++) {
        s->at[p] = s->at[p + 1];
        s->mem[p] = s->mem[p + 1];
        s->pos[s->at[p]] = p;
    }
    if (fullest) refresh(s, block);
    s->free[s->counts[FREE]++] = node;
    note(s, v, successor);
}

/* Undo the edits after the first `logged`; nodes get their old ids back, as the stack is restored. */
void undo(State *s, Int logged) {
    for (Int entry = s->counts[LOGGED] - 1; entry >= logged; entry--) {
        s->counts[LOGGED] = entry;
        Int what = s->log[2 * entry], successor = s->log[2 * entry + 1];
        if (successor < 0)
            remove_node(s, what);
        else
            insert_node(s, what, successor);
    }
    s->counts[LOGGED] = logged;
}

/* Make the arrays hold this sequence, which must be valid; the log is empty afterwards. */
void load(State *s, const Int *sequence, Int length) {
    Int end = s->counts[OPS], nodes = s->counts[NODES];
    for (Int v = 0; v < end; v++) {
        s->head[v] = s->tail[v] = -1;
        s->runs[v] = 0;
    }
    s->counts[REPEATED] = s->counts[LOGGED] = 0;
    s->counts[BLOCKS] = 1;
    s->totals[COST] = 0.0;
    for (Int i = 0; i < nodes; i++) s->free[i] = nodes - 1 - i;
    s->counts[FREE] = nodes - 1;
    s->filled[0] = 1;
    s->add[0] = s->at[0] = s->mem[0] = 0;
    s->op[0] = end;
    s->pos[0] = 0;
    s->prev[0] = -1;
    s->head[end] = s->tail[end] = 0;
    s->runs[end] = 1;
    for (Int i = 0; i < length; i++) {
        insert_node(s, sequence[i], 0);
        s->counts[LOGGED] = 0;
    }
    for (Int i = s->reads_at[end]; i < s->reads_at[end + 1]; i++) {
        Int t = s->reads[i];
        end_copy(s, latest(s, s->producer[t], s->pos[0]), t, 0);
    }
    lay_out(s);
}

/* Remember this sequence as the cheapest, the end left out. */
static void keep_best(State *s) {
    Int n = 0;
    for (Int block = 0; block < s->counts[BLOCKS]; block++)
        for (Int i = 0; i < s->filled[block]; i++) s->best[n++] = s->op[s->at[(block << SHIFT) + i]];
    s->counts[BEST_LENGTH] = n - 1;
    s->totals[BEST] = s->totals[COST];
}
