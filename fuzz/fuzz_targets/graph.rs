//! The filter-graph language: any text is parsed or refused without a panic or a hang; what parses prints as a graph that
//! parses to the same filters; what lowers keeps the shapes of its steps in a chain.
#![no_main]

use convoy::filter::{parse, plan};
use convoy::frame::{Packing, PixelFormat, Shape};
use libfuzzer_sys::{Corpus, fuzz_target};

const SHAPES: [Shape; 4] = [
    Shape { format: PixelFormat::yuv(8, 1, 1), width: 1920, height: 1080 },
    Shape { format: PixelFormat { packing: Packing::SemiPlanar, ..PixelFormat::yuv(10, 1, 1) }, width: 7, height: 5 },
    Shape { format: PixelFormat::gbr(16), width: 1, height: 1 },
    Shape { format: PixelFormat::gray(32), width: 3, height: 100_000 },
];

fuzz_target!(|text: &str| -> Corpus {
    // `@file` must not open devices and pipes of the machine that fuzzes; a bare name finds nothing here.
    if text.contains('@') && text.contains('/') {
        return Corpus::Reject;
    }
    let Ok(filters) = parse(text) else { return Corpus::Keep };
    let printed = filters.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    match parse(&printed) {
        Ok(again) => assert_eq!(again, filters, "printed as {printed}"),
        Err(error) => panic!("printed as {printed}, which is refused: {error}"),
    }
    for shape in SHAPES {
        if let Ok(plan) = plan(&filters, shape) {
            let mut reached = shape;
            for step in &plan.steps {
                assert_eq!(step.input, reached);
                reached = step.output;
            }
            assert_eq!(plan.output(), reached);
        }
    }
    Corpus::Keep
});
