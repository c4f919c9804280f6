/*
 * list.h - doubly linked list whose links lie in its members
 *
 * A link that is in no list points to itself, so that list_remove() may be called twice.
 */
#pragma once

#include <stddef.h>

struct list {
    struct list *next, *prev;
};

#define container_of(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

/* Both for the head of a list and for a member's link. */
static inline void list_init(struct list *list) {
    list->next = list->prev = list;
}

static inline int list_is_empty(const struct list *list) {
    return list->next == list;
}

static inline void list_append(struct list *list, struct list *link) {
    link->prev = list->prev;
    link->next = list;
    list->prev->next = link;
    list->prev = link;
}

static inline void list_prepend(struct list *list, struct list *link) {
    list_append(list->next, link);
}

static inline void list_remove(struct list *link) {
    link->prev->next = link->next;
    link->next->prev = link->prev;
    list_init(link);
}

/* Moves all links of `from` to the end of `list`. */
static inline void list_splice(struct list *list, struct list *from) {
    if (!list_is_empty(from)) {
        from->next->prev = list->prev;
        from->prev->next = list;
        list->prev->next = from->next;
        list->prev = from->prev;
        list_init(from);
    }
}

/* Takes the oldest link off the list, or returns NULL. */
static inline struct list *list_pop(struct list *list) {
    struct list *link = list->next;

    if (link == list) {
        return NULL;
    }
    list_remove(link);
    return link;
}

/* The body may remove `link`, and only that. */
#define list_for_each(link, head)                                                     \
    for (struct list *link = (head)->next, *next_##link = link->next; link != (head); \
         link = next_##link, next_##link = link->next)
