// The last launch of the rungs that scan by sections.
#include "scan/sections.h"

namespace tp::scan {

void add_totals(const char* name, const Args& args, void* partial, void* totals, int64_t section, int64_t sections,
                Context& context) {
  with_wide_elements(args, [&](auto elements) {
    using Acc = typename decltype(elements)::Acc;
    elements.partial = static_cast<Acc*>(partial);
    block::add_totals(context, name,
                      Sections<decltype(elements)>{elements, section, sections, static_cast<Acc*>(totals)});
  });
}

}  // namespace tp::scan
