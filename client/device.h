/*
 * device.h - CUDA devices as this process sees them
 */
#pragma once

#include "tensorcx.h"
