//! Bars, as SVG: one below the other, as long as their times, on one linear axis that begins at nothing.

use std::fmt::Write as _;

const WIDTH: f64 = 860.0;
const LABELS: f64 = 330.0;
const VALUES: f64 = 110.0;
const TOP: f64 = 74.0;
const ROW: f64 = 38.0;
const BAR: f64 = 22.0;

/// A time in milliseconds, with what it is the time of.
#[derive(Debug)]
pub struct Bar {
    pub label: String,
    pub ms: f64,
    /// The one that others are compared with.
    pub is_reference: bool,
}

pub fn render(title: &str, below: &str, bars: &[Bar]) -> String {
    let longest = bars.iter().map(|bar| bar.ms).fold(f64::MIN_POSITIVE, f64::max);
    let rows = bars.iter().fold(0.0, |rows, _| rows + 1.0);
    let height = TOP + ROW * rows + 12.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"30\" font-size=\"18\" font-weight=\"bold\" fill=\"#222\">{}</text>\n\
         <text x=\"16\" y=\"52\" font-size=\"13\" fill=\"#666\">{}</text>\n",
        escape(title),
        escape(below)
    );
    let mut y = TOP;
    for bar in bars {
        let length = (bar.ms / longest * (WIDTH - LABELS - VALUES)).max(1.0);
        let colour = if bar.is_reference { "#b9bec7" } else { "#2f6fed" };
        let (middle, end) = (y + BAR * 0.7, LABELS + length + 8.0);
        let (label, time) = (escape(&bar.label), human(bar.ms));
        // Writing to a string cannot fail.
        let _ = write!(
            svg,
            "<text x=\"{:.0}\" y=\"{middle:.1}\" font-size=\"13\" fill=\"#222\" text-anchor=\"end\">{label}</text>\n\
             <rect x=\"{LABELS:.0}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{BAR:.0}\" rx=\"3\" fill=\"{colour}\"/>\n\
             <text x=\"{end:.1}\" y=\"{middle:.1}\" font-size=\"13\" fill=\"#222\">{time}</text>\n",
            LABELS - 10.0
        );
        y += ROW;
    }
    svg + "</svg>\n"
}

/// Milliseconds with the unit that suits them.
pub fn human(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 1000.0 => format!("{ms:.0} ms"),
        ms if ms < 120_000.0 => format!("{:.1} s", ms / 1e3),
        ms => format!("{:.1} min", ms / 6e4),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_times() {
        let bar = |label: &str, ms| Bar { label: label.into(), ms, is_reference: false };
        let svg = render("a < b", "c & d", &[bar("one", 100.0), bar("two", 50.0), bar("none", 0.0)]);
        let full = WIDTH - LABELS - VALUES;
        for width in [full, full / 2.0, 1.0] {
            assert!(svg.contains(&format!("width=\"{width:.1}\" height")), "{width}: {svg}");
        }
        assert!(svg.contains("a &lt; b") && svg.contains("c &amp; d") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn times_have_units() {
        for (ms, text) in [(0.5, "0.50 ms"), (27.4, "27 ms"), (5100.0, "5.1 s"), (510_000.0, "8.5 min")] {
            assert_eq!(human(ms), text);
        }
    }
}
