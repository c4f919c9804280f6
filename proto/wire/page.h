/*
 * page.h - a page that tells how long somebody has it mapped: life pages, fork pages
 */
#pragma once

/* A new memfd of WIRE_PAGE_NBYTES bytes, the caller's. It is sealed, so that nobody who maps it can
 * be hurt by another. A negative errno on failure. */
int page_create(const char *name);
