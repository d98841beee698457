// Runs in the snapshot, before it is frozen. Names at the top level stay for the code of its forks.
var ts = require('typescript');

// Compiles TypeScript and runs it; the value of its last expression.
function run(source) {
  const { outputText, diagnostics } = ts.transpileModule(source, {
    compilerOptions: { module: ts.ModuleKind.CommonJS, target: ts.ScriptTarget.ES2020 },
    reportDiagnostics: true,
  });
  if (diagnostics.length > 0) throw new SyntaxError(ts.flattenDiagnosticMessageText(diagnostics[0].messageText, '\n'));
  return (0, eval)(outputText);
}

run('const warm: number = 1; warm');
