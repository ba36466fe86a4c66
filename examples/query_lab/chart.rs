//! The time that the users of a load used, as a picture: a chart for each.

use std::{error::Error, time::Duration};

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::{load::User, query::Lab, report::used_in_window};

const FAIR: RGBColor = RGBColor(21, 101, 192);
const GREEDY: RGBColor = RGBColor(230, 126, 0);
const BUDGET: RGBColor = RGBColor(198, 40, 40);
const TEXT: RGBColor = RGBColor(51, 51, 51);

const CHART: (i32, i32) = (320, 150);
const COLUMNS: i32 = 3;
const MARGIN: i32 = 10;
const HEADER: i32 = 36;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(crate) fn svg(users: &[User], lab: &Lab, lasting: Duration) -> Result<String, Box<dyn Error>> {
    let rows = i32::try_from(users.chunks(COLUMNS as usize).len())?;
    let size = (2 * MARGIN + COLUMNS * CHART.0, HEADER + rows * CHART.1 + MARGIN);
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (u32::try_from(size.0)?, u32::try_from(size.1)?)).into_drawing_area();
    root.fill(&WHITE)?;
    let words =
        format!("execution time used in the last {} s, in ms, and the budget of", lab.window.length().as_secs());
    root.draw(&Text::new(format!("{words} {} ms (red)", lab.budget_ms), (MARGIN, 12), font(13)))?;
    let start = users.iter().flat_map(|user| &user.entries).map(|entry| entry.start_us).min().unwrap_or_default();
    for (number, user) in (0..).zip(users) {
        let at = (MARGIN + number % COLUMNS * CHART.0, HEADER + number / COLUMNS * CHART.1);
        draw(&root.clone().shrink(at, CHART), user, lab, start, lasting)?;
    }
    root.present()?;
    drop(root);
    Ok(svg)
}

fn draw(area: &Area, user: &User, lab: &Lab, start_us: u64, lasting: Duration) -> Result<(), Box<dyn Error>> {
    let end = lasting.as_secs_f64();
    let budget = f64::from(u32::try_from(lab.budget_ms)?);
    let mut chart = ChartBuilder::on(area)
        .margin_top(24)
        .margin_right(12)
        .x_label_area_size(20)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..end, 0.0..budget * 1.25)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(TEXT)
        .label_style(font(12))
        .x_labels(6)
        .x_label_formatter(&|at| format!("{at} s"))
        .y_labels(4)
        .y_label_formatter(&|used| format!("{used:.0}"))
        .draw()?;
    let corner = |(at, used): (u64, u64)| {
        (Duration::from_micros(at - start_us).as_secs_f64(), Duration::from_micros(used).as_secs_f64() * 1_000.0)
    };
    let mut line = vec![(0.0, 0.0)];
    line.extend(used_in_window(&user.entries, lab).into_iter().map(corner).take_while(|(at, _)| *at <= end));
    line.push((end, line.last().map_or(0.0, |(_, used)| *used)));
    let colour = if user.is_greedy { GREEDY } else { FAIR };
    chart.draw_series(AreaSeries::new(line.iter().copied(), 0.0, colour.mix(0.2)))?;
    chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
    chart.draw_series(LineSeries::new([(0.0, budget), (end, budget)], BUDGET))?;
    area.draw(&Text::new(user.name.clone(), (CHART.0 - 14, 4), font(13).pos(Pos::new(HPos::Right, VPos::Top))))?;
    Ok(())
}

/// Width in pixels.
fn font(size: u8) -> TextStyle<'static> {
    let size = 1.24 * f64::from(size); // which plotters divides by it
    ("sans-serif", size).into_font().color(&TEXT)
}
