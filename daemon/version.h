/*
 * version.h - the version of this build; the Makefile says which
 */
#pragma once

#ifndef TENSORCX_VERSION
#    define TENSORCX_VERSION "unversioned"
#endif
