// The network layer by layer (Fig. 16.4): one operator of conv, pooling or layers after another, forward and backward,
// then an update of every parameter. The caller composes it, because the operators choose their own rungs for each
// shape.
#include "lenet/lenet.h"

namespace tp::lenet {

void layers(const Args& args, Context&) { args.layers(); }

}  // namespace tp::lenet
