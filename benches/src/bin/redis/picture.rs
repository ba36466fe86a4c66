//! A picture of decisions per second and of waits, by the number of callers.

use std::{error::Error, fs};

use plotters::{coord::Shift, prelude::*};

/// Figures of one contender.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<Point>,
}

#[derive(Clone, Copy)]
pub(crate) struct Point {
    pub(crate) callers: u64,
    pub(crate) decisions: f64,
    pub(crate) p99_us: f64,
}

const SIZE: (u32, u32) = (1_000, 460);
const COLOURS: [RGBColor; 8] = [
    RGBColor(21, 101, 192),
    RGBColor(46, 125, 50),
    RGBColor(106, 27, 154),
    RGBColor(0, 131, 143),
    RGBColor(198, 40, 40),
    RGBColor(230, 126, 0),
    RGBColor(121, 85, 72),
    RGBColor(97, 97, 97),
];

/// Writes an SVG file.
pub(crate) fn write(file: &str, lines: &[Line]) -> Result<(), Box<dyn Error>> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (charts, legend) = root.split_vertically(400);
        let (left, right) = charts.split_horizontally(500);
        chart(&left, "decisions per second", lines, |point| point.decisions)?;
        chart(&right, "p99 of a decision, in microseconds", lines, |point| point.p99_us)?;
        for (at, (line, colour)) in (0..).zip(lines.iter().zip(COLOURS)) {
            let (x, y) = (40 + at % 4 * 240, 8 + at / 4 * 24);
            legend.draw(&Rectangle::new([(x, y + 3), (x + 16, y + 9)], colour.filled()))?;
            legend.draw(&Text::new(line.name.trim(), (x + 22, y), ("sans-serif", 15)))?;
        }
        root.present()?;
    }
    fs::write(file, svg)?;
    Ok(())
}

/// One chart, with logarithmic axes.
fn chart(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    lines: &[Line],
    figure: impl Fn(Point) -> f64,
) -> Result<(), Box<dyn Error>> {
    let points = || lines.iter().flat_map(|line| &line.points).copied();
    let most_callers = points().map(|point| point.callers).max().unwrap_or(2);
    let [lowest, highest] = [f64::min, f64::max].map(|choose| points().map(&figure).reduce(choose).unwrap_or(1.0));
    let decade = |figure: f64| 10_f64.powf(figure.log10());
    let (lowest, highest) = (decade(lowest) / 1.5, decade(highest) * 1.5);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 17))
        .margin(10)
        .x_label_area_size(34)
        .y_label_area_size(76)
        .build_cartesian_2d((1..most_callers).log_scale(), (lowest..highest).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(RGBColor(240, 240, 240))
        .x_desc("callers at once")
        .x_label_formatter(&ToString::to_string)
        .y_label_formatter(&|figure| {
            if *figure < 1.0 { format!("{figure}") } else { format!("{figure:.0}") }
        })
        .draw()?;
    for (line, colour) in lines.iter().zip(COLOURS) {
        let points = || line.points.iter().map(|point| (point.callers, figure(*point)));
        chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?;
        chart.draw_series(points().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    Ok(())
}
