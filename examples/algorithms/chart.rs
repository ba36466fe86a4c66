//! The admitted calls as a picture: a row for each traffic, a column for each algorithm.

use std::error::Error;

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::{Admitted, CANDIDATES, COUNT, END_MS, Outcome, PERIOD_MS, in_last, traffic::Traffic};

const OFFERED: RGBColor = RGBColor(216, 216, 216);
const LIMIT: RGBColor = RGBColor(198, 40, 40);
/// By client: the only one or the greedy one, and the modest one.
const ADMITTED: [RGBColor; 2] = [RGBColor(21, 101, 192), RGBColor(230, 126, 0)];
const TEXT: RGBColor = RGBColor(51, 51, 51);

const CHART: (i32, i32) = (196, 144);
const MARGIN: i32 = 10;
const HEADER: i32 = 72;
const ROW_TITLE: i32 = 28;
/// Below zero is room for a mark at each call that was let through.
const LOWEST: i64 = -6;
const HIGHEST: i64 = 30;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(crate) fn svg(outcome: &Outcome) -> Result<String, Box<dyn Error>> {
    let rows = &outcome.rows;
    let (columns, lines) = (i32::try_from(CANDIDATES.len())?, i32::try_from(rows.len())?);
    let size = (2 * MARGIN + columns * CHART.0, HEADER + lines * (ROW_TITLE + CHART.1) + MARGIN);
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (u32::try_from(size.0)?, u32::try_from(size.1)?)).into_drawing_area();
    root.fill(&WHITE)?;
    legend(&root)?;
    let mut y = HEADER;
    for (column, candidate) in (0..).zip(&CANDIDATES) {
        let options = candidate.name.find('(').unwrap_or(candidate.name.len());
        let (word, options) = candidate.name.split_at(options);
        let x = MARGIN + column * CHART.0 + CHART.0 / 2 + 8;
        for (text, y, size) in [(word, HEADER - 35, 13), (options, HEADER - 18, 11)] {
            root.draw(&Text::new(text, (x, y), font(size).pos(Pos::new(HPos::Center, VPos::Top))))?;
        }
    }
    for (traffic, by_candidate) in rows {
        root.draw(&Text::new(traffic.name, (MARGIN, y + 9), font(15)))?;
        y += ROW_TITLE;
        for (column, (candidate, admitted)) in (0..).zip(CANDIDATES.iter().zip(by_candidate)) {
            let x = MARGIN + column * CHART.0;
            let area = root.clone().shrink((x, y), CHART);
            let most = admitted.iter().map(|calls| outcome.most_in_a_period(calls)).max().unwrap_or_default();
            draw(&area, traffic, admitted, &format!("most {most}, promised {}", candidate.promise))?;
        }
        y += CHART.1;
    }
    root.present()?;
    drop(root);
    Ok(svg)
}

fn legend(root: &Area) -> Result<(), Box<dyn Error>> {
    let words = [
        (OFFERED, "offered in the last second"),
        (ADMITTED[0], "admitted in the last second; a mark for each call"),
        (ADMITTED[1], "the modest client's"),
        (LIMIT, "the limit"),
    ];
    let mut x = MARGIN;
    for (colour, words) in words {
        root.draw(&Rectangle::new([(x, 13), (x + 14, 23)], colour.filled()))?;
        root.draw(&Text::new(words, (x + 20, 12), font(13)))?;
        x += 40 + i32::try_from(words.len())? * 15 / 2;
    }
    Ok(())
}

fn draw(area: &Area, traffic: &Traffic, admitted: &Admitted, words: &str) -> Result<(), Box<dyn Error>> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(18)
        .margin_right(8)
        .x_label_area_size(20)
        .y_label_area_size(26)
        .build_cartesian_2d(0..END_MS, LOWEST..HIGHEST)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(TEXT)
        .label_style(font(12))
        .x_labels(6)
        .x_label_formatter(&|at_ms| format!("{} s", at_ms / 1000))
        .y_labels(4)
        .y_label_formatter(&|count| if *count < 0 { String::new() } else { count.to_string() })
        .draw()?;

    let offered: Vec<u64> = traffic.clients.iter().flat_map(|client| client.calls.iter().copied()).collect();
    chart.draw_series(AreaSeries::new(in_last(PERIOD_MS, &offered), 0, OFFERED))?;
    let limit = i64::try_from(COUNT)?;
    chart.draw_series(LineSeries::new([(0, limit), (END_MS, limit)], LIMIT))?;
    let share = -LOWEST / i64::try_from(admitted.len())?;
    for (bottom, (calls, colour)) in (LOWEST..).step_by(usize::try_from(share)?).zip(admitted.iter().zip(ADMITTED)) {
        chart.draw_series(LineSeries::new(in_last(PERIOD_MS, calls), colour.stroke_width(2)))?;
        let marks = calls.iter().flat_map(|at_ms| [bottom, bottom + share - 1, bottom].map(|y| (*at_ms, y)));
        chart.draw_series(LineSeries::new(marks, colour))?;
    }
    area.draw(&Text::new(words, (CHART.0 - 10, 2), font(12).pos(Pos::new(HPos::Right, VPos::Top))))?;
    Ok(())
}

/// Width in pixels.
fn font(size: u8) -> TextStyle<'static> {
    let size = 1.24 * f64::from(size); // which plotters divides by it
    ("sans-serif", size).into_font().color(&TEXT)
}
